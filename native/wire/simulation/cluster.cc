#include "cluster.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "calls.h"
#include "invariants.h"

namespace tensorwire::simulation {

Cluster::Cluster(Random& random, World* world, Ledger* ledger) : world_(world), ledger_(ledger) {
  world_->machines.resize(static_cast<size_t>(ledger_->plan.machines));
  MakeLinks(random);
  MakeTasks(random);
}

void Cluster::MakeLinks(Random& random) {
  const Plan& plan = ledger_->plan;
  for (int from = 0; from < plan.machines; ++from) {
    for (int to = 0; to < plan.machines; ++to) {
      Link& link = world_->LinkBetween(from, to);
      link.latency_ns = from == to ? 5 * kUs : random.AnySize(10 * kUs, 2 * kMs);
      link.bytes_per_s = plan.large_bytes > (8 << 20) ? random.AnySize(5'000'000, 200'000'000)
                                                      : random.Between(100'000'000, 2'000'000'000);
      // One buffer per round trip.
      const int64_t least = static_cast<int64_t>(world_->buffer_bytes) * kSecond /
                            (40 * (link.latency_ns + 100 * kUs));
      bytes_per_s_ = std::min({bytes_per_s_, least, link.bytes_per_s / 4});
    }
  }
}

void Cluster::MakeTasks(Random& random) {
  const Plan& plan = ledger_->plan;
  for (int i = 0; i < plan.tasks; ++i) {
    auto task = std::make_unique<Task>();
    task->index = i;
    task->machine = i < plan.machines
                        ? i
                        : static_cast<int>(random.Below(static_cast<uint64_t>(plan.machines)));
    task->port = 7000 + i;
    task->name = "task" + std::to_string(i);
    task->host = "10.0.0." + std::to_string(task->machine + 1);
    task->address = task->host + ":" + std::to_string(task->port);
    if (plan.refusing_address) {
      task->address =
          "10.0.0." + std::to_string((task->machine + 1) % plan.machines + 1) + "," + task->address;
    } else if (plan.silent_address) {
      task->address = "10.0.0.99," + task->address;
    }
    task->reactors = static_cast<int>(random.Between(1, 3));
    task->streams = static_cast<int>(random.Between(0, 3));
    task->silent_ms = plan.silent_ms;
    if (random.OneIn(5)) task->transport = wire::Transport::kTcp;
    for (int target = 0; target < plan.tasks; ++target) {
      if (target != i && (target == (i + 1) % plan.tasks || random.OneIn(2))) {
        task->targets.push_back(target);
      }
    }
    ledger_->tasks.push_back(std::move(task));
  }
  if (plan.freezes && !plan.long_freezes && !plan.clogs) {
    // The first task is frozen for longer than its own silent_ms; the other tasks have a longer
    // one.
    ledger_->tasks[0]->silent_ms = 200;
  }
}

Task* Cluster::AnyTask() {
  return ledger_->tasks[world_->random.Below(ledger_->tasks.size())].get();
}

void Cluster::StartAll() {
  for (int machine = 0; machine < ledger_->plan.machines; ++machine) PowerOn(machine);
  for (const auto& task : ledger_->tasks) Start(task.get());
}

void Cluster::Start(Task* task) {
  task->starts = false;
  if (task->process != nullptr || !world_->machines[static_cast<size_t>(task->machine)].up) return;
  ++task->incarnation;
  task->listens = false;
  task->stop = false;
  task->expected_to_end = false;
  task->callers_left = ledger_->plan.callers;
  task->probe = false;
  task->probed = false;
  task->handed_over.clear();
  task->payloads = 0;
  task->held.clear();
  task->handled.clear();
  task->gone.clear();
  task->pushes_under_way = 0;
  task->process = world_->Start(task->name, task->machine, [task] { RunTask(task); });
  task->process->at_end = [this, task] { OnEnd(task); };
}

void Cluster::OnEnd(Task* task) {
  CheckExit(*task);
  task->process = nullptr;
  if (!ledger_->ending) StartLater(task);
}

void Cluster::StartLater(Task* task) {
  if (task->starts) return;
  task->starts = true;
  world_->After(world_->random.AnySize(1 * kMs, 2000 * kMs), [this, task] {
    if (task->starts && !ledger_->ending) Start(task);
  });
}

void Cluster::Stop(Task* task) {
  if (task->process == nullptr || task->stop) return;
  task->stop = true;
  task->probe = true;
  world_->WakeAll(&task->stop);
  world_->WakeAll(&task->probe);
}

void Cluster::Kill(Task* task, bool silently) {
  if (task->process == nullptr) return;
  // The calls of the killed process need not end.
  for (Record& record : ledger_->records) {
    if (record.task == task && record.incarnation == task->incarnation) record.ended = true;
  }
  Thaw(task);
  world_->Kill(task->process, silently);
  task->process = nullptr;
}

void Cluster::Freeze(Task* task) {
  if (task->process == nullptr || task->frozen_since_ns > 0) return;
  task->frozen_since_ns = world_->now_ns;
  world_->Freeze(task->process);
}

void Cluster::Thaw(Task* task) {
  if (task->frozen_since_ns == 0) return;
  task->frozen_ns += world_->now_ns - task->frozen_since_ns;
  task->frozen_since_ns = 0;
  world_->Thaw(task->process);
}

void Cluster::PowerOff(int machine) {
  Machine& off = world_->machines[static_cast<size_t>(machine)];
  if (!off.up) return;
  Trace("power off", machine);
  off.up = false;
  ++off.boots;
  for (const auto& task : ledger_->tasks) {
    if (task->machine == machine) Kill(task.get(), /*silently=*/true);
  }
  world_->After(world_->random.AnySize(1 * kMs, 1000 * kMs), [this, machine] { PowerOn(machine); });
}

void Cluster::PowerOn(int machine) {
  Machine& on = world_->machines[static_cast<size_t>(machine)];
  if (on.up) return;
  Trace("power on", machine);
  on.up = true;
  for (const auto& task : ledger_->tasks) {
    if (task->machine == machine) Start(task.get());
  }
}

bool Cluster::AllHaveEnded() const {
  return std::all_of(ledger_->tasks.begin(), ledger_->tasks.end(),
                     [](const auto& task) { return task->process == nullptr; });
}

}  // namespace tensorwire::simulation
