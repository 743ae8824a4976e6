#include <algorithm>
#include <cstring>
#include <memory>

#include "keys.h"
#include "serve.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace tensorwire::bench {
namespace {

using tensorflow::Rendezvous;
using tensorflow::Tensor;

class Ps {
 public:
  absl::Status Start(const tensorflow::ServerDef& server_def) {
    tensorflow::ServerFactory* factory = nullptr;
    TF_RETURN_IF_ERROR(tensorflow::ServerFactory::GetFactory(server_def, &factory));
    TF_RETURN_IF_ERROR(factory->NewServer(server_def, {}, &server_));
    TF_RETURN_IF_ERROR(server_->Start());
    session_ = server_->worker_env()->session_mgr->LegacySession();
    return server_->worker_env()->device_mgr->LookupDevice("CPU:0", &cpu_);
  }

  uint64_t incarnation() const { return cpu_->attributes().incarnation(); }

  absl::Status Fill(int64_t step_id, const int64_t* sizes, int64_t count) {
    tensorflow::RendezvousMgrInterface* const manager = server_->worker_env()->rendezvous_mgr;
    if (step_id_ != 0) manager->Cleanup(step_id_);
    step_id_ = step_id;
    const auto rendezvous = manager->Find(step_id);
    TF_RETURN_IF_ERROR(rendezvous->Initialize(session_.get()));
    // All tensors are slices of one, as many workers may request the value of one variable.
    const int64_t largest = count > 0 ? *std::max_element(sizes, sizes + count) : 0;
    if (memory_.NumElements() < largest) {
      // Allocated as a kernel's result would be: grpc++ has its own allocator.
      memory_ = Tensor(cpu_->GetAllocator({}), tensorflow::DT_UINT8, {largest});
      std::memset(memory_.flat<uint8_t>().data(), kFill, static_cast<size_t>(largest));
    }
    for (int64_t i = 0; i < count; ++i) {
      Rendezvous::ParsedKey key;
      TF_RETURN_IF_ERROR(Rendezvous::ParseKey(KeyOf(i, incarnation()), &key));
      absl::Status s = rendezvous->Send(key, {}, memory_.Slice(0, sizes[i]), /*is_dead=*/false);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<tensorflow::ServerInterface> server_;
  std::shared_ptr<tensorflow::WorkerSession> session_;
  tensorflow::Device* cpu_ = nullptr;
  int64_t step_id_ = 0;
  Tensor memory_;
};

Ps* const the_ps = new Ps;  // its threads run until the process ends

}  // namespace
}  // namespace tensorwire::bench

extern "C" const char* tensorwire_bench_start_ps(const void* server_def, uint64_t bytes,
                                                 uint64_t* incarnation) {
  using namespace tensorwire::bench;
  tensorflow::ServerDef parsed;
  if (!parsed.ParseFromArray(server_def, static_cast<int>(bytes))) return "no ServerDef";
  if (const char* error = Words(the_ps->Start(parsed))) return error;
  *incarnation = the_ps->incarnation();
  return nullptr;
}

extern "C" const char* tensorwire_bench_fill(int64_t step_id, const int64_t* sizes, int64_t count) {
  using namespace tensorwire::bench;
  return Words(the_ps->Fill(step_id, sizes, count));
}
