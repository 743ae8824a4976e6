#include "faults.h"

#include <functional>
#include <vector>

#include "kernel.h"

namespace tensorwire::simulation {

void Faults::Begin() {
  const Plan& plan = ledger_->plan;
  if (plan.loses() || plan.clogs || plan.freezes) NextLater();
  // Later, because a task that is just starting may fail if it gets no descriptor.
  world_->After(25 * kMs, [this] { BeginFailingCalls(); });
}

void Faults::BeginFailingCalls() {
  if (ledger_->faults_over) return;
  if (ledger_->plan.epoll_failures) world_->epoll_failure_one_in = 20;
  if (ledger_->plan.flips) world_->flip_one_in = 40;
  if (ledger_->plan.descriptor_failures) world_->descriptor_failure_one_in = 4;
}

void Faults::NextLater() {
  world_->After(world_->random.AnySize(1 * kMs, ledger_->plan.fault_ns / 2 + 25 * kMs), [this] {
    if (ledger_->faults_over) return;
    Next();
    NextLater();
  });
}

void Faults::Next() {
  const Plan& plan = ledger_->plan;
  Task* const task = cluster_->AnyTask();
  std::vector<std::function<void()>> possible;
  if (plan.kills) {
    possible.emplace_back([this, task] {
      cluster_->Kill(task, /*silently=*/false);
      cluster_->StartLater(task);
    });
  }
  if (plan.restarts) possible.emplace_back([this, task] { cluster_->Stop(task); });
  if (plan.power) possible.emplace_back([this, task] { cluster_->PowerOff(task->machine); });
  if (plan.resets) {
    possible.emplace_back([this, task] {
      ResetConnections(task->machine, cluster_->AnyTask()->machine, ledger_->plan.half_open);
    });
  }
  if (plan.clogs && world_->now_ns >= unclogged_ns_) {
    possible.emplace_back([this, task] { Clog(task->machine, cluster_->AnyTask()->machine); });
  }
  if (plan.freezes && world_->now_ns >= thawed_ns_) possible.emplace_back([this] { FreezeOne(); });
  if (!possible.empty()) possible[world_->random.Below(possible.size())]();
}

void Faults::Clog(int from, int to) {
  const Plan& plan = ledger_->plan;
  const int64_t most_ns = plan.long_clogs ? 2000 * kMs : plan.silent_ms * kMs / 5;
  const int64_t for_ns = world_->random.AnySize(1 * kMs, most_ns);
  Trace("clog", from, to, for_ns);
  world_->LinkBetween(from, to).clogged_until_ns = world_->now_ns + for_ns;
  if (world_->random.OneIn(2)) {
    world_->LinkBetween(to, from).clogged_until_ns = world_->now_ns + for_ns;
  }
  unclogged_ns_ = world_->now_ns + (plan.long_clogs ? 1 : 3) * for_ns;
}

void Faults::FreezeOne() {
  const Plan& plan = ledger_->plan;
  Task* const task = plan.long_freezes ? cluster_->AnyTask() : ledger_->tasks[0].get();
  const int64_t for_ns = plan.long_freezes
                             ? world_->random.AnySize(1 * kMs, 3000 * kMs)
                             : world_->random.Between(1 * kMs, plan.silent_ms * kMs / 3);
  cluster_->Freeze(task);
  thawed_ns_ = world_->now_ns + (plan.long_freezes ? 1 : 3) * for_ns;
  world_->After(for_ns, [this, task] { cluster_->Thaw(task); });
}

void Faults::End() {
  Trace("faults over");
  world_->epoll_failure_one_in = 0;
  world_->descriptor_failure_one_in = 0;
  world_->flip_one_in = 0;
  for (int from = 0; from < ledger_->plan.machines; ++from) {
    for (int to = 0; to < ledger_->plan.machines; ++to) {
      world_->LinkBetween(from, to).clogged_until_ns = 0;
    }
  }
  for (const auto& task : ledger_->tasks) cluster_->Thaw(task.get());
  cluster_->StartAll();
}

}  // namespace tensorwire::simulation
