#include "plan.h"

namespace tensorwire::simulation {

Plan ChoosePlan(Random& random, World* w) {
  Plan plan;
  plan.tasks = static_cast<int>(random.Between(2, 4));
  plan.machines = static_cast<int>(random.Between(1, plan.tasks));
  plan.callers = static_cast<int>(random.Between(1, 2));
  plan.calls = static_cast<int>(random.AnySize(4, 24));
  plan.fault_ns = random.AnySize(20, 600) * kMs;
  plan.longest_pause_ns = random.OneIn(3) ? 0 : plan.fault_ns / plan.calls;
  plan.most_bytes = random.OneIn(3) ? 200 : int64_t{8 << 10} << random.AnySize(0, 5);
  plan.longest_deadline_ns = random.AnySize(5, 300) * kMs;
  plan.deadline_one_in = static_cast<uint64_t>(random.Between(1, 8));
  plan.cancel_one_in = static_cast<uint64_t>(random.Between(2, 12));
  plan.cancels_patiently = random.OneIn(2);
  plan.long_deadlines = random.OneIn(3);
  plan.shared_memory = random.OneIn(8);
  plan.checksum = random.OneIn(4);
  plan.refusing_address = plan.machines > 1 && random.OneIn(8);
  plan.silent_address = random.OneIn(10);
  plan.stop_early = random.OneIn(5);
  if (random.OneIn(5)) plan.unanswered_bytes = static_cast<uint64_t>(random.Between(1, 20'000));
  plan.silent_ms = static_cast<int>(300 * random.Between(1, 4));
  plan.connect_ms = static_cast<int>(random.Between(300, 2000));
  plan.handshake_ms = static_cast<int>(random.Between(300, 1000));
  if (random.OneIn(5)) plan.slowest_closure_ns = random.AnySize(1, 200) * kMs;
  if (random.OneIn(plan.shared_memory ? 3 : 30)) plan.large_bytes = 400 << 10;
  plan.larges = static_cast<int>(random.AnySize(1, 12));
  if (random.OneIn(60)) {
    // So large that payloads are fetched in ranges, or copied by several threads.
    plan.large_bytes = 10 << 20;
    plan.larges = static_cast<int>(random.Between(1, 3));
    plan.calls = static_cast<int>(random.Between(1, 4));
    plan.callers = 1;
    plan.tasks = 2;
    plan.machines = static_cast<int>(random.Between(1, 2));
  }

  if (!random.OneIn(6)) {
    plan.kills = random.OneIn(5);
    plan.restarts = random.OneIn(6);
    plan.power = random.OneIn(8);
    plan.resets = random.OneIn(5);
    plan.half_open = plan.resets && random.OneIn(3);
    plan.clogs = random.OneIn(4);
    plan.long_clogs = plan.clogs && random.OneIn(2);
    plan.freezes = random.OneIn(5);
    plan.long_freezes = plan.freezes && random.OneIn(3);
    plan.epoll_failures = random.OneIn(10);
    plan.descriptor_failures = random.OneIn(12);
    plan.flips = plan.checksum && random.OneIn(2);
  }
  if (plan.freezes && !plan.long_freezes) plan.silent_ms = std::max(plan.silent_ms, 1200);
  // Long enough to notice a call that waits for a task that is gone.
  if (plan.kills || plan.restarts) plan.fault_ns = std::max(plan.fault_ns, 700 * kMs);
  // With timeouts shorter than a clog or freeze, connections would be lost, which this plan does
  // not allow.
  if ((plan.clogs || plan.freezes) && !plan.loses()) {
    plan.connect_ms = std::max(plan.connect_ms, 6000);
    plan.handshake_ms = std::max(plan.handshake_ms, 3000);
  }

  w->switch_one_in = random.OneIn(4) ? 0 : uint64_t{1} << random.Between(2, 11);
  w->stall_one_in = random.OneIn(3) ? 0 : uint64_t{1} << random.Between(3, 9);
  w->longest_stall_ns = random.OneIn(3) ? 5 * kMs : random.AnySize(10 * kUs, 5 * kMs);
  w->call_ns = random.Between(50, 2000);
  w->partial_one_in = random.OneIn(3) ? 0 : static_cast<uint64_t>(random.Between(1, 30));
  w->interrupt_one_in = random.OneIn(2) ? 0 : static_cast<uint64_t>(random.Between(5, 100));
  w->buffer_bytes = size_t{4 << 10} << random.Below(8);
  if (plan.large_bytes > 0) w->buffer_bytes = std::max<size_t>(w->buffer_bytes, 128 << 10);
  Random more(random);
  plan.leaves_channels = more.OneIn(4);
  // One that idles because of a fault may be closed for others.
  if (!plan.clogs && !plan.freezes && more.OneIn(4)) {
    plan.strangers = static_cast<int>(more.Between(1, 3));
  }
  return plan;
}

}  // namespace tensorwire::simulation
