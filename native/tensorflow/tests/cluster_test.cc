// A ps and a worker in one process, with sessions that train, fail, are late and are closed: under
// sanitizers, the plug-in's own code from RunGraph to the reply. Compiled as one with the plug-in's
// files (tests/plugin_unit.py).
// usage: cluster_test PS_PORT WORKER_PORT [TEST]

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/standard_ops.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"

// TensorFlow's logging has macros of these names.
#undef CHECK
#undef CHECK_EQ
#include "../../wire/tests/check.h"

namespace tensorwire::plugin {
namespace {

namespace ops = tensorflow::ops;
using tensorflow::Scope;
using tensorflow::Session;
using tensorflow::TensorShape;

constexpr const char* kPs = "/job:ps/task:0/device:CPU:0";
constexpr const char* kWorker = "/job:worker/task:0/device:CPU:0";
// Of a session's variables; the last does not come with its head.
constexpr int64_t kSizes[] = {1, 3, 100'000};

int ps_port = 0;
int worker_port = 0;

#define DEMAND(expression)                                                            \
  do {                                                                                \
    const absl::Status demanded = (expression);                                       \
    if (!demanded.ok()) check::Fail(__FILE__, __LINE__, demanded.ToString().c_str()); \
  } while (false)

std::string Address(int port) { return "127.0.0.1:" + std::to_string(port); }

// Both tasks, which stay for the process's life: TensorFlow cannot stop a server.
void Serve() {
  for (const auto& [job, port] : {std::pair("ps", ps_port), std::pair("worker", worker_port)}) {
    tensorflow::ServerDef def;
    def.set_protocol("grpc++");
    def.set_job_name(job);
    for (const auto& [name, at] : {std::pair("ps", ps_port), std::pair("worker", worker_port)}) {
      auto* const of = def.mutable_cluster()->add_job();
      of->set_name(name);
      (*of->mutable_tasks())[0] = Address(at);
    }
    std::unique_ptr<tensorflow::ServerInterface> server;
    DEMAND(tensorflow::NewServer(def, &server));
    DEMAND(server->Start());
    static std::vector<tensorflow::ServerInterface*> kept;
    kept.push_back(server.release());
  }
}

std::unique_ptr<Session> Open(const Scope& root, bool fused = false) {
  DEMAND(root.status());
  tensorflow::GraphDef graph;
  DEMAND(root.ToGraphDef(&graph));
  tensorflow::SessionOptions options;
  options.target = "grpc://" + Address(worker_port);
  options.config.set_operation_timeout_in_ms(60'000);
  if (fused) {
    auto* const rewrite = options.config.mutable_graph_options()->mutable_rewrite_options();
    rewrite->add_custom_optimizers()->set_name(kFuseOptimizerName);
  }
  std::unique_ptr<Session> session(tensorflow::NewSession(options));
  CHECK(session != nullptr);
  DEMAND(session->Create(graph));
  return session;
}

absl::Status Run(Session* session, const std::vector<std::string>& fetches, int timeout_ms = 0,
                 std::vector<Tensor>* out = nullptr) {
  tensorflow::RunOptions options;
  if (timeout_ms > 0) options.set_timeout_in_ms(timeout_ms);
  std::vector<Tensor> ignored;
  return session->Run(options, {}, fetches, {}, out == nullptr ? &ignored : out, nullptr);
}

// Variables on the ps, and a step that reads them, adds one on the worker and writes them back.
Scope TrainingGraph(const std::string& name) {
  const Scope root = Scope::NewRootScope();
  const Scope ps = root.WithDevice(kPs);
  const Scope worker = root.WithDevice(kWorker);
  std::vector<tensorflow::Operation> inits;
  std::vector<tensorflow::Operation> writes;
  for (const int64_t size : kSizes) {
    const std::string number = std::to_string(size);
    const auto variable = ops::VarHandleOp(ps, tensorflow::DT_INT64, {size},
                                           ops::VarHandleOp::SharedName(name + number));
    const auto zeros = ops::Fill(ps, ops::Const(ps, {size}), ops::Const(ps, int64_t{0}));
    inits.push_back(ops::AssignVariableOp(ps, variable, zeros).operation);
    const auto read = ops::ReadVariableOp(ps, variable, tensorflow::DT_INT64);
    const auto more =
        ops::Add(worker.WithOpName("more_" + number), read, ops::Const(worker, int64_t{1}));
    writes.push_back(ops::AssignVariableOp(ps, variable, more).operation);
  }
  ops::NoOp(ps.WithOpName("init").WithControlDependencies(inits));
  ops::NoOp(ps.WithOpName("step").WithControlDependencies(writes));
  return root;
}

void Train(const std::string& name, int steps, bool fused) {
  const auto session = Open(TrainingGraph(name), fused);
  DEMAND(session->Run({}, {}, {"init"}, nullptr));
  std::vector<std::string> fetches;
  for (const int64_t size : kSizes) fetches.push_back("more_" + std::to_string(size) + ":0");
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<Tensor> out;
    DEMAND(session->Run({}, fetches, {"step"}, &out));
    for (size_t i = 0; i < out.size(); ++i) {
      const auto values = out[i].flat<int64_t>();
      CHECK_EQ(values.size(), kSizes[i]);
      CHECK_EQ(values(0), step);
      CHECK_EQ(values(values.size() - 1), step);
    }
  }
  DEMAND(session->Close());
}

// A queue on the ps, of which the worker waits for an element.
Scope QueueGraph(const std::string& name) {
  const Scope root = Scope::NewRootScope();
  const Scope ps = root.WithDevice(kPs);
  const Scope worker = root.WithDevice(kWorker);
  const auto queue = ops::FIFOQueue(ps, {tensorflow::DT_FLOAT}, ops::FIFOQueue::SharedName(name));
  ops::QueueEnqueue(ps.WithOpName("give"), queue, {ops::Const(ps, 4.5f)});
  const auto taken = ops::QueueDequeue(ps, queue, {tensorflow::DT_FLOAT});
  ops::Add(worker.WithOpName("take"), taken[0], ops::Const(worker, 1.0f));
  return root;
}

TEST(steps_of_several_sessions_at_once_come_to_the_right_values) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] { Train("train_" + std::to_string(i), 60, /*fused=*/i % 2 != 0); });
  }
  for (auto& thread : threads) thread.join();
}

TEST(a_session_that_comes_after_another_begins_anew) {
  for (int i = 0; i < 4; ++i) Train("again", 5, /*fused=*/false);
}

TEST(a_step_that_is_late_ends_and_the_next_ones_work) {
  const auto session = Open(QueueGraph("late"));
  for (int i = 0; i < 4; ++i) {
    const absl::Status late = Run(session.get(), {"take:0"}, 300);
    CHECK(absl::IsDeadlineExceeded(late));
    // The client's clock may run out before the master's, which is what the ps hears of.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    DEMAND(session->Run({}, {}, {"give"}, nullptr));
    std::vector<Tensor> out;
    DEMAND(Run(session.get(), {"take:0"}, 0, &out));
    CHECK_EQ(out.at(0).scalar<float>()(), 5.5f);
  }
  DEMAND(session->Close());
}

TEST(a_session_that_is_closed_ends_the_step_that_waits) {
  for (int i = 0; i < 5; ++i) {
    const auto session = Open(QueueGraph("closed_" + std::to_string(i)));
    std::atomic<bool> failed{false};
    std::thread waits([&] { failed = !Run(session.get(), {"take:0"}).ok(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    session->Close().IgnoreError();
    waits.join();
    CHECK(failed);
  }
}

TEST(a_step_of_which_one_part_fails_ends_on_both_tasks_and_the_next_ones_work) {
  const Scope root = Scope::NewRootScope();
  const Scope ps = root.WithDevice(kPs);
  const Scope worker = root.WithDevice(kWorker);
  const auto seven = ops::Add(ps, ops::Const(ps, 3.0f), ops::Const(ps, 4.0f));
  const auto sent = ops::Multiply(worker.WithOpName("good"), seven, ops::Const(worker, 2.0f));
  const auto bad = ops::CheckNumerics(
      ps, ops::Div(ps, seven, ops::Sub(ps, seven, ops::Const(ps, 7.0f))), "it says so");
  ops::Add(worker.WithOpName("bad"), bad, sent);
  const auto session = Open(root);
  for (int i = 0; i < 40; ++i) {
    const absl::Status failed = Run(session.get(), {"bad:0"});
    CHECK(absl::IsInvalidArgument(failed));
    CHECK(failed.message().find("it says so") != std::string::npos);
    std::vector<Tensor> out;
    DEMAND(Run(session.get(), {"good:0"}, 0, &out));
    CHECK_EQ(out.at(0).scalar<float>()(), 14.0f);
  }
  DEMAND(session->Close());
}

}  // namespace
}  // namespace tensorwire::plugin

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  tensorwire::plugin::ps_port = std::atoi(argv[1]);
  tensorwire::plugin::worker_port = std::atoi(argv[2]);
  tensorwire::plugin::Serve();
  const int code = check::RunTests(argc - 2, argv + 2);
  // Servers' threads go on: no destructor is to meet them.
  std::fflush(nullptr);
  std::_Exit(code);
}
