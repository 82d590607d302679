#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <string>
#include <utility>

namespace folio::server {

// Items of clients that take turns; those of one client come in their order. Not thread-safe.
template <typename Item>
class TurnQueue {
 public:
  bool empty() const { return turns_.empty(); }

  void Push(const std::string& client, Item item) {
    const auto own = std::find_if(turns_.begin(), turns_.end(),
                                  [&client](const Turn& turn) { return turn.client == client; });
    if (own != turns_.end()) return own->items.push_back(std::move(item));
    Turn turn{client, {}};
    turn.items.push_back(std::move(item));
    turns_.push_back(std::move(turn));
  }

  // Allocates nothing. REQUIRES: not empty.
  Item Pop() {
    Turn& next = turns_.front();
    Item item = std::move(next.items.front());
    next.items.pop_front();
    if (next.items.empty()) {
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
    return item;
  }

 private:
  struct Turn {
    std::string client;
    std::deque<Item> items;  // at least one
  };
  std::list<Turn> turns_;  // the next one first
};

}  // namespace folio::server
