// A ps and a worker in one process, with sessions that train, fail, are late and are closed, and
// with contexts of TF2's eager runtime. Under sanitizers this checks the plug-in's own code, from
// RunGraph or an operation to the reply. Compiled as one unit with the plug-in's files
// (tests/plugin_unit.py).
// usage: cluster_test PS_PORT WORKER_PORT CLIENT_PORT [TEST]

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/c/eager/c_api.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/standard_ops.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/rendezvous.h"
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

constexpr const char* kPs = "/job:ps/replica:0/task:0/device:CPU:0";
constexpr const char* kWorker = "/job:worker/replica:0/task:0/device:CPU:0";
// Sizes of a session's variables; the last one is too large to arrive together with its head.
constexpr int64_t kSizes[] = {1, 3, 100'000};
constexpr int kTables = 6;
constexpr int64_t kRows = 300;  // enough that a table crosses in 16 bits

int ps_port = 0;
int worker_port = 0;
int client_port = 0;
tensorflow::ServerInterface* ps_server = nullptr;
tensorflow::ServerInterface* worker_server = nullptr;

#define DEMAND(expression)                                                            \
  do {                                                                                \
    const absl::Status demanded = (expression);                                       \
    if (!demanded.ok()) check::Fail(__FILE__, __LINE__, demanded.ToString().c_str()); \
  } while (false)

std::string Address(int port) { return "127.0.0.1:" + std::to_string(port); }

// The ServerDef of `job` in a cluster that has one task of each of these jobs.
tensorflow::ServerDef ClusterAs(const std::string& job,
                                const std::vector<std::pair<std::string, int>>& ports) {
  tensorflow::ServerDef def;
  def.set_protocol("grpc++");
  def.set_job_name(job);
  for (const auto& [name, port] : ports) {
    auto* const of = def.mutable_cluster()->add_job();
    of->set_name(name);
    (*of->mutable_tasks())[0] = Address(port);
  }
  return def;
}

// Starts both tasks. They live as long as the process, because TensorFlow cannot stop a server.
void Serve() {
  for (const std::string job : {"ps", "worker"}) {
    const tensorflow::ServerDef def = ClusterAs(job, {{"ps", ps_port}, {"worker", worker_port}});
    std::unique_ptr<tensorflow::ServerInterface> server;
    DEMAND(tensorflow::NewServer(def, &server));
    DEMAND(server->Start());
    (job == "ps" ? ps_server : worker_server) = server.release();
  }
}

// `rewrites`: names of custom optimizers. kWireDtype gets bfloat16.
std::unique_ptr<Session> Open(const Scope& root, const std::vector<const char*>& rewrites = {}) {
  DEMAND(root.status());
  tensorflow::GraphDef graph;
  DEMAND(root.ToGraphDef(&graph));
  tensorflow::SessionOptions options;
  options.target = "grpc://" + Address(worker_port);
  options.config.set_operation_timeout_in_ms(60'000);
  auto* const rewriter = options.config.mutable_graph_options()->mutable_rewrite_options();
  for (const char* const rewrite : rewrites) {
    auto* const entry = rewriter->add_custom_optimizers();
    entry->set_name(rewrite);
    if (std::string_view(rewrite) == kWireDtype.optimizer)
      (*entry->mutable_parameter_map())["dtype"].set_s("bfloat16");
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

void Train(const std::string& name, int steps, const std::vector<const char*>& rewrites = {}) {
  const auto session = Open(TrainingGraph(name), rewrites);
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

// Tables on the ps. The worker looks up their rows by fed ids, and an optimizer applies the
// gradients.
Scope TablesGraph(const std::string& name) {
  const Scope root = Scope::NewRootScope();
  const Scope ps = root.WithDevice(kPs);
  const Scope worker = root.WithDevice(kWorker);
  const auto fed = ops::Placeholder(worker.WithOpName("fed"), tensorflow::DT_INT64);
  const auto ids = ops::Identity(worker, fed);
  std::vector<tensorflow::Operation> inits;
  std::vector<tensorflow::Operation> updates;
  std::vector<tensorflow::Output> all_rows;
  for (int table = 0; table < kTables; ++table) {
    const int64_t columns = table + 1;
    std::vector<tensorflow::Output> handles;
    for (const char* const part : {"_rows_", "_slot_"}) {
      const auto variable =
          ops::VarHandleOp(ps, tensorflow::DT_FLOAT, {kRows, columns},
                           ops::VarHandleOp::SharedName(name + part + std::to_string(table)));
      const auto ones = ops::Fill(ps, ops::Const(ps, {kRows, columns}), ops::Const(ps, 1.0f));
      inits.push_back(ops::AssignVariableOp(ps, variable, ones).operation);
      handles.push_back(variable);
    }
    const auto rows = ops::ResourceGather(ps, handles[0], ids, tensorflow::DT_FLOAT);
    const auto gradients = ops::Multiply(worker, rows, ops::Const(worker, 0.3f));
    all_rows.push_back(ops::Reshape(worker, gradients, ops::Const(worker, {-1})));
    const auto unique = ops::Unique(ps, ids);
    const auto count =
        ops::StridedSlice(ps, ops::Shape(ps, unique.y), ops::Const(ps, {0}), ops::Const(ps, {1}),
                          ops::Const(ps, {1}), ops::StridedSlice::ShrinkAxisMask(1));
    const auto sums = ops::UnsortedSegmentSum(ps, gradients, unique.idx, count);
    updates.push_back(ops::ResourceSparseApplyAdagrad(ps, handles[0], handles[1],
                                                      ops::Const(ps, 0.1f), sums, unique.y)
                          .operation);
  }
  ops::Concat(worker.WithOpName("rows"), all_rows, ops::Const(worker, 0));
  ops::NoOp(ps.WithOpName("init").WithControlDependencies(inits));
  ops::NoOp(ps.WithOpName("step").WithControlDependencies(updates));
  return root;
}

// The rows of each step.
std::vector<std::vector<float>> TrainTables(const std::string& name,
                                            const std::vector<const char*>& rewrites = {}) {
  const auto session = Open(TablesGraph(name), rewrites);
  DEMAND(session->Run({}, {}, {"init"}, nullptr));
  std::vector<std::vector<float>> found;
  for (int64_t step = 0; step < 20; ++step) {
    Tensor ids(tensorflow::DT_INT64, {step * 3});  // none in the first step
    for (int64_t i = 0; i < ids.NumElements(); ++i) ids.flat<int64_t>()(i) = i * step % kRows;
    std::vector<Tensor> out;
    DEMAND(session->Run({{"fed", ids}}, {"rows:0"}, {"step"}, &out));
    const auto rows = out.at(0).flat<float>();
    found.emplace_back(rows.data(), rows.data() + rows.size());
  }
  Tensor no_row(tensorflow::DT_INT64, {2});
  no_row.flat<int64_t>()(0) = 0;
  no_row.flat<int64_t>()(1) = kRows;
  CHECK(absl::IsInvalidArgument(session->Run({{"fed", no_row}}, {"rows:0"}, {"step"}, nullptr)));
  DEMAND(session->Close());
  return found;
}

// A queue on the ps; the worker waits for an element of it.
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
    const std::vector<const char*> rewrites(i % 2, kTensorFuse.optimizer);
    threads.emplace_back([=] { Train("train_" + std::to_string(i), 60, rewrites); });
  }
  for (auto& thread : threads) thread.join();
}

TEST(tables_are_trained_by_all_exact_rewrites_as_without_them) {
  const auto stock = TrainTables("stock");
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([i, &stock] {
      CHECK(TrainTables("exact_" + std::to_string(i), {kExactRewrites.optimizer}) == stock);
    });
  }
  for (auto& thread : threads) thread.join();
  const auto counts = RewriteCounts::Get().counts();
  for (const char* const rewrite : {"unique_pull", "summed_push", "bundles"}) {
    CHECK(counts.count({rewrite, RewriteCounts::kApplied}) == 1);
  }
}

TEST(tables_are_trained_in_16_bits_almost_as_in_32) {
  const auto stock = TrainTables("in_32_bits");
  const std::vector<std::vector<const char*>> settings{
      {kWireDtype.optimizer}, {kWireDtype.optimizer, kExactRewrites.optimizer}};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < settings.size(); ++i) {
    threads.emplace_back([i, &settings, &stock] {
      const auto found = TrainTables("in_16_bits_" + std::to_string(i), settings[i]);
      CHECK(found != stock);
      for (size_t step = 0; step < stock.size(); ++step) {
        CHECK(found[step].size() == stock[step].size());
        for (size_t j = 0; j < stock[step].size(); ++j) {
          CHECK(std::abs(found[step][j] - stock[step][j]) < 0.02f);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(a_session_that_comes_after_another_begins_anew) {
  for (int i = 0; i < 4; ++i) Train("again", 5);
}

TEST(a_step_that_is_late_ends_and_the_next_ones_work) {
  const auto session = Open(QueueGraph("late"));
  for (int i = 0; i < 4; ++i) {
    const absl::Status late = Run(session.get(), {"take:0"}, 300);
    CHECK(absl::IsDeadlineExceeded(late));
    // The client's timeout may fire before the master's, and the ps is told only by the master.
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

// A context of TF2's eager runtime in a third task, which runs operations on the other two.
class Eager {
 public:
  Eager() {
    TFE_ContextOptions* const options = TFE_NewContextOptions();
    context_ = TFE_NewContext(options, Checked());
    TFE_DeleteContextOptions(options);
    const std::string def =
        ClusterAs("client", {{"client", client_port}, {"ps", ps_port}, {"worker", worker_port}})
            .SerializeAsString();
    TFE_ContextSetServerDef(context_, /*keep_alive_secs=*/60, def.data(), def.size(), Checked());
    Check();
  }
  ~Eager() {
    for (TFE_TensorHandle* handle : handles_) TFE_DeleteTensorHandle(handle);
    TFE_DeleteContext(context_);
    TF_DeleteStatus(status_);
  }

  TFE_TensorHandle* Number(float value) {
    TF_Tensor* const tensor = TF_AllocateTensor(TF_FLOAT, nullptr, 0, sizeof(value));
    std::memcpy(TF_TensorData(tensor), &value, sizeof(value));
    TFE_TensorHandle* const handle = TFE_NewTensorHandle(tensor, Checked());
    TF_DeleteTensor(tensor);
    return Kept(handle);
  }

  // Runs an operation with one number or two, on `device`.
  TFE_TensorHandle* Run(const std::string& name, const std::string& device,
                        const std::vector<TFE_TensorHandle*>& inputs, bool is_function = false) {
    TFE_Op* const op = TFE_NewOp(context_, name.c_str(), Checked());
    if (!device.empty()) TFE_OpSetDevice(op, device.c_str(), Checked());
    if (!is_function) TFE_OpSetAttrType(op, "T", TF_FLOAT);
    if (name == "CheckNumerics") TFE_OpSetAttrString(op, "message", "it says so", 10);
    for (TFE_TensorHandle* input : inputs) TFE_OpAddInput(op, input, Checked());
    Check();
    TFE_TensorHandle* made = nullptr;
    int count = 1;
    TFE_Execute(op, &made, &count, status_);
    TFE_DeleteOp(op);
    return TF_GetCode(status_) == TF_OK ? Kept(made) : nullptr;
  }

  // `handle` is null if it could not be made; then the result has no meaning.
  float Value(TFE_TensorHandle* handle) {
    TF_Tensor* const tensor =
        handle == nullptr ? nullptr : TFE_TensorHandleResolve(handle, status_);
    if (tensor == nullptr) return -1.0f;
    const float value = *static_cast<const float*>(TF_TensorData(tensor));
    TF_DeleteTensor(tensor);
    return value;
  }

  // Checks that it failed, and the reason.
  void Fails(TFE_TensorHandle* handle, const std::string& why) {
    Value(handle);
    const std::string said = TF_Message(status_);
    TF_SetStatus(status_, TF_OK, "");
    CHECK(said.find(why) != std::string::npos);
  }

  void Define(const tensorflow::FunctionDef& function) {
    const std::string text = function.SerializeAsString();
    TFE_ContextAddFunctionDef(context_, text.data(), text.size(), Checked());
    Check();
  }

 private:
  TF_Status* Checked() {
    Check();
    return status_;
  }
  void Check() const {
    if (TF_GetCode(status_) != TF_OK) check::Fail(__FILE__, __LINE__, TF_Message(status_));
  }
  TFE_TensorHandle* Kept(TFE_TensorHandle* handle) {
    if (handle != nullptr) handles_.push_back(handle);
    return handle;
  }

  TF_Status* const status_ = TF_NewStatus();
  TFE_Context* context_ = nullptr;
  std::vector<TFE_TensorHandle*> handles_;
};

// --- the end of a step ---

// A rendezvous of the ps, for a step that no session began.
tsl::core::RefCountPtr<tensorflow::RemoteRendezvous> RendezvousOfStep(int64_t step_id) {
  tensorflow::WorkerEnv* const env = ps_server->worker_env();
  auto rendezvous = env->rendezvous_mgr->Find(step_id);
  DEMAND(rendezvous->Initialize(env->session_mgr->LegacySession().get()));
  return rendezvous;
}

tensorflow::Rendezvous::ParsedKey KeyOnPs() {
  tensorflow::Rendezvous::ParsedKey parsed;
  DEMAND(tensorflow::Rendezvous::ParseKey(
      tensorflow::Rendezvous::CreateKey(kPs, 1, kPs, "x", tensorflow::FrameAndIter(0, 0)),
      &parsed));
  return parsed;
}

TEST(a_step_that_is_cleaned_up_while_a_thread_still_has_it_does_not_stay_for_ever) {
  constexpr int64_t kStep = 1'000'001;
  auto rendezvous = RendezvousOfStep(kStep);
  const tsl::core::WeakPtr<tensorflow::RemoteRendezvous> weak(rendezvous.get());
  ps_server->worker_env()->rendezvous_mgr->Cleanup(kStep);
  // A later Find must not return this one.
  CHECK(ps_server->worker_env()->rendezvous_mgr->Find(kStep).get() != rendezvous.get());
  rendezvous.reset();
  CHECK(weak.GetNewRef() == nullptr);
}

TEST(what_waits_in_a_step_that_was_cleaned_up_is_told_soon) {
  constexpr int64_t kStep = 1'000'002;
  const auto rendezvous = RendezvousOfStep(kStep);
  absl::Notification ended;
  absl::Status why;
  rendezvous->RecvAsync(KeyOnPs(), {},
                        [&](const absl::Status& status, const tensorflow::Rendezvous::Args&,
                            const tensorflow::Rendezvous::Args&, const Tensor&, bool) {
                          why = status;
                          ended.Notify();
                        });
  ps_server->worker_env()->rendezvous_mgr->Cleanup(kStep);
  CHECK(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  CHECK(absl::IsAborted(why));
}

// The process has only one: TensorFlow does not release the port of a context that has ended.
std::unique_ptr<Eager>& Client() {
  static auto* const client = new std::unique_ptr<Eager>(new Eager);
  return *client;
}

TEST(operations_on_other_tasks_come_to_the_right_values_and_fail_where_they_should) {
  Eager& eager = *Client();
  const uint64_t calls = Counters().eager_calls;
  TFE_TensorHandle* const one = eager.Number(1.0f);
  TFE_TensorHandle* sum = eager.Run("AddV2", kPs, {one, one});
  for (int i = 0; i < 30; ++i) sum = eager.Run("AddV2", i % 2 == 0 ? kWorker : kPs, {sum, one});
  CHECK_EQ(eager.Value(sum), 32.0f);

  TFE_TensorHandle* const zero = eager.Number(0.0f);
  for (int i = 0; i < 10; ++i) {
    TFE_TensorHandle* const infinite = eager.Run("RealDiv", kPs, {one, zero});
    eager.Fails(eager.Run("CheckNumerics", kPs, {infinite}), "it says so");
    CHECK_EQ(eager.Value(eager.Run("AddV2", kPs, {one, sum})), 33.0f);
  }
  CHECK(Counters().eager_calls >= calls + 60);  // not over gRPC
}

TEST(a_function_on_both_tasks_comes_to_the_right_value) {
  Eager& eager = *Client();
  tensorflow::FunctionDef both;
  auto* const signature = both.mutable_signature();
  signature->set_name("both");
  for (const auto& [name, argument] :
       {std::pair("x", signature->add_input_arg()), std::pair("z", signature->add_output_arg())}) {
    argument->set_name(name);
    argument->set_type(tensorflow::DT_FLOAT);
  }
  for (const auto& [name, input, device] :
       {std::tuple("a", "x", kPs), std::tuple("b", "a:z:0", kWorker)}) {
    auto* const node = both.add_node_def();
    node->set_name(name);
    node->set_op("AddV2");
    node->add_input(input);
    node->add_input("x");
    node->set_device(device);
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  }
  (*both.mutable_ret())["z"] = "b:z:0";
  eager.Define(both);
  for (int i = 0; i < 30; ++i) {
    const auto number = static_cast<float>(i);
    CHECK_EQ(eager.Value(eager.Run("both", "", {eager.Number(number)}, true)), 3 * number);
  }
}

TEST(a_context_ends_with_operations_under_way) {
  TFE_TensorHandle* const one = Client()->Number(1.0f);
  for (int i = 0; i < 200; ++i) Client()->Run("AddV2", kPs, {one, one});
  Client().reset();
}

}  // namespace
}  // namespace tensorwire::plugin

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  tensorwire::plugin::ps_port = std::atoi(argv[1]);
  tensorwire::plugin::worker_port = std::atoi(argv[2]);
  tensorwire::plugin::client_port = std::atoi(argv[3]);
  tensorwire::plugin::Serve();
  const int code = check::RunTests(argc - 3, argv + 3);
  // No destructors: the servers' threads are still running.
  std::fflush(nullptr);
  std::_Exit(code);
}
