#include "engine/runtime/engine_thread.h"

#include <future>

#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

class EngineThreadTest : public EngineLoopTest {
 protected:
  ~EngineThreadTest() override { thread_.Stop(); }
  // The thread has done all that was posted before.
  void Wait() {
    std::promise<void> done;
    thread_.Post({[&done](EngineLoop&) { done.set_value(); }});
    done.get_future().wait();
  }
  EngineThread thread_{&loop_, store_.get()};
};

// Many that come during one long step are to know of each other.
TEST_F(EngineThreadTest, RequestsAreOfTheLoadAsSoonAsTheyArePosted) {
  std::promise<void> in_step;
  std::promise<void> step_ends;
  thread_.Post({[&](EngineLoop&) {
    in_step.set_value();
    step_ends.get_future().wait();
  }});
  in_step.get_future().wait();
  const TenantPtr tenant = NamedTenant("a");
  for (const int tokens : {100, 200}) {
    LoadItem request = NewItem({}, PlanFor(Attention("full"), Model()), {0, tokens}, {tenant, 0});
    thread_.Post({[](EngineLoop&) {}}, request);
    const WorkLoad load = thread_.GetLoad();
    ASSERT_FALSE(load.items.empty());
    EXPECT_EQ(load.items.back().prompt_tokens, tokens);
    EXPECT_FALSE(load.items.back().runs);
  }
  EXPECT_EQ(thread_.GetLoad().items.size(), 2);
  // From then on the loop knows them, and says what there is: in this case nothing.
  step_ends.set_value();
  Wait();
  Wait();
  EXPECT_TRUE(thread_.GetLoad().items.empty());
}

}  // namespace
}  // namespace folio::test
