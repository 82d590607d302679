#pragma once

#include <mutex>
#include <thread>

namespace folio::testing {

// Forwards one TCP connection, until it is cut in the middle: a client that vanishes.
class TcpProxy {
 public:
  explicit TcpProxy(int target_port);
  ~TcpProxy();

  int port() const { return port_; }
  // Resets both sides.
  void Cut();

 private:
  void Main(int target_port);
  void Forward(int from, int to);

  int port_ = 0;
  int listener_ = -1;
  std::mutex mu_;
  int client_ = -1;   // guarded by mu_
  int server_ = -1;   // guarded by mu_
  bool cut_ = false;  // guarded by mu_
  std::thread thread_;
};

}  // namespace folio::testing
