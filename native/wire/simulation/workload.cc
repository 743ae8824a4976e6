#include "workload.h"

#include <algorithm>
#include <memory>
#include <string>

#include "calls.h"
#include "cluster.h"
#include "faults.h"
#include "invariants.h"
#include "ledger.h"
#include "plan.h"
#include "simulator.h"

namespace tensorwire::simulation {

bool break_a_promise = false;
Ledger* ledger = nullptr;

namespace {

// The course of one seed. Tasks call each other while faults happen. The faults end, and all calls
// must end, too. Then a call on each channel must succeed, and at rest the tasks may hold few
// resources.
class Scene {
 public:
  Scene(World* world, Ledger* ledger, Random& random)
      : world_(world),
        ledger_(ledger),
        cluster_(random, world, ledger),
        faults_(world, ledger, &cluster_) {}

  void Play() {
    cluster_.StartAll();
    faults_.Begin();
    Audit();
    world_->After(20 * kMs + ledger_->plan.fault_ns, [this] { EndFaults(); });
    world_->Run([this] { return ledger_->ending && cluster_.AllHaveEnded(); });
  }

 private:
  // Checks the open calls, again and again.
  void Audit() {
    CheckOpenCalls(cluster_.bytes_per_s());
    world_->After(20 * kMs, [this] { Audit(); });
  }

  void EndFaults() {
    ledger_->faults_over = true;
    faults_.End();
    if (ledger_->plan.stop_early) {
      StopAll();
      return;
    }
    ledger_->answer_all = true;
    settle_by_ns_ = world_->now_ns + PatienceNs();
    Settle();
  }

  // Enough time to detect lost peers, to make connections, and to end all calls.
  int64_t PatienceNs() const {
    const Plan& plan = ledger_->plan;
    return 10 * kSecond + 2 * plan.fault_ns +
           2 * kMs * (plan.silent_ms + plan.connect_ms + plan.handshake_ms);
  }

  void Settle() {
    const bool running =
        std::all_of(ledger_->tasks.begin(), ledger_->tasks.end(), [](const auto& task) {
          return task->process != nullptr && !task->stop && task->callers_left == 0;
        });
    const auto open = std::find_if(ledger_->records.begin(), ledger_->records.end(),
                                   [](const Record& record) { return !record.ended; });
    if (running && open == ledger_->records.end()) {
      const Plan& plan = ledger_->plan;
      const int64_t found_ms =
          plan.loses_silently()
              ? plan.silent_ms * 3 / 2 + std::max(plan.handshake_ms, plan.connect_ms)
              : 0;
      world_->After((found_ms + 300) * kMs, [this] { Probe(); });
      return;
    }
    if (world_->now_ns > settle_by_ns_) {
      Violated(open != ledger_->records.end()
                   ? Describe(*open) + " has not ended long after the last fault"
                   : "a task does not come back after the last fault");
    }
    world_->After(20 * kMs, [this] { Settle(); });
  }

  // There are no faults now, so a call on each channel must succeed. Some plans leave out some
  // channels, so that CheckRest sees what the faults have left there.
  void Probe() {
    for (const auto& task : ledger_->tasks) {
      task->probe = true;
      world_->WakeAll(&task->probe);
    }
    probed_by_ns_ = world_->now_ns + PatienceNs();
    AwaitProbes();
  }
  void AwaitProbes() {
    const bool done = std::all_of(ledger_->tasks.begin(), ledger_->tasks.end(),
                                  [](const auto& task) { return task->probed; }) &&
                      std::all_of(ledger_->records.begin(), ledger_->records.end(),
                                  [](const Record& record) { return record.ended; });
    if (done) {
      // Payloads of cancelled calls may still be under way.
      const int64_t sent_ns =
          static_cast<int64_t>(ledger_->bytes / 16) * kSecond / cluster_.bytes_per_s();
      world_->After(std::max(1500 * kMs, sent_ns), [this] {
        for (const auto& task : ledger_->tasks) CheckRest(*task);
        StopAll();
      });
      return;
    }
    if (world_->now_ns > probed_by_ns_) Violated("a call after the last fault does not end");
    world_->After(20 * kMs, [this] { AwaitProbes(); });
  }

  void StopAll() {
    ledger_->ending = true;
    ledger_->answer_all = true;
    if (break_a_promise) ledger_->records.push_back(Broken());
    for (const auto& task : ledger_->tasks) {
      world_->After(world_->random.AnySize(0, 20 * kMs),
                    [this, t = task.get()] { cluster_.Stop(t); });
    }
  }

  Record Broken() {
    Record record;
    record.task = ledger_->tasks[0].get();
    record.incarnation = record.task->incarnation;
    record.begun_ns = world_->now_ns;
    return record;
  }

  World* const world_;
  Ledger* const ledger_;
  Cluster cluster_;
  Faults faults_;
  int64_t settle_by_ns_ = 0;
  int64_t probed_by_ns_ = 0;
};

}  // namespace

Outcome RunSeed(uint64_t number) {
  seed = number;
  trace_hash = number;
  Pattern();
  World w(number);
  Random random(number ^ 0x5eed);  // for the choices before the run
  Ledger l;
  l.plan = ChoosePlan(random, &w);
  ledger = &l;
  Scene(&w, &l, random).Play();
  Trace("end", static_cast<int64_t>(l.records.size()), static_cast<int64_t>(l.ok));
  ledger = nullptr;
  Outcome outcome;
  outcome.hash = trace_hash;
  outcome.calls = l.records.size();
  outcome.calls_ok = l.ok;
  outcome.switches = w.switches();
  outcome.simulated_ns = w.now_ns - World::kBeginNs;
  return outcome;
}

}  // namespace tensorwire::simulation
