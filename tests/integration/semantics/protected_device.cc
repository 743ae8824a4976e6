// A device for tests, /device:PROTECTED:0, whose memory the CPU may not touch: TensorFlow sees
// addresses that cannot be read or written; the device itself works on other pages at a fixed
// distance. Code that treats one of its tensors as one in host memory crashes, and so does code
// that gives its kernels a tensor in host memory. Copies and kernels run in the streams' threads,
// after the enqueuing function has returned, so that a missing wait for a copy is noticed, too.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace {

constexpr char kDeviceType[] = "PROTECTED";
// TensorFlow keeps 225 MB of it for itself; only pages that are written to use memory.
constexpr size_t kMemoryBytes = size_t{1} << 30;
// So long that code which does not wait for a copy is faster than the copy.
constexpr std::chrono::microseconds kCopyTime{500};

// The device's memory: the first half has the device's addresses, the second half the contents.
class Memory {
 public:
  static Memory& Get() {
    static auto* const memory = new Memory;
    return *memory;
  }

  // Nothing is freed: TensorFlow allocates everything at once and divides it itself.
  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > kMemoryBytes - used_) return nullptr;
    void* const block = addresses_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return block;
  }
  size_t free_bytes() {
    std::lock_guard lock(mutex_);
    return kMemoryBytes - used_;
  }

  // The host address of the contents at a device address.
  template <typename T>
  T* At(const T* address, size_t bytes) const {
    const auto first = reinterpret_cast<uintptr_t>(address);
    const auto begin = reinterpret_cast<uintptr_t>(addresses_);
    if (first < begin || first - begin > kMemoryBytes || bytes > kMemoryBytes - (first - begin)) {
      std::fprintf(stderr, "%p is no address of %s\n", static_cast<const void*>(address),
                   kDeviceType);
      std::raise(SIGSEGV);
    }
    return reinterpret_cast<T*>(first + kMemoryBytes);
  }

 private:
  static constexpr size_t kAlignment = 256;

  Memory()
      : addresses_(static_cast<char*>(mmap(nullptr, 2 * kMemoryBytes, PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (addresses_ == MAP_FAILED ||
        mprotect(addresses_ + kMemoryBytes, kMemoryBytes, PROT_READ | PROT_WRITE) != 0) {
      std::perror(kDeviceType);
      std::abort();
    }
  }

  char* const addresses_;
  std::mutex mutex_;
  size_t used_ = 0;
};

// Counts how often an event was requested, and how often it has happened.
struct Happenings {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t asked = 0;
  uint64_t happened = 0;

  uint64_t Ask() {
    std::lock_guard lock(mutex);
    return ++asked;
  }
  void Happen(uint64_t number) {
    std::lock_guard lock(mutex);
    happened = std::max(happened, number);
    changed.notify_all();
  }
  void Wait(uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return happened >= number; });
  }
  uint64_t Last() {
    std::lock_guard lock(mutex);
    return asked;
  }
  bool IsPending() {
    std::lock_guard lock(mutex);
    return happened < asked;
  }
};

}  // namespace

// Runs enqueued functions in its own thread, in order.
struct SP_Stream_st {
 public:
  ~SP_Stream_st() {
    Enqueue([this] { ended_ = true; });
    thread_.join();
  }

  void Enqueue(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  // Waits until all enqueued functions have run.
  void Drain() {
    auto drained = std::make_shared<Happenings>();
    Enqueue([drained] { drained->Happen(1); });
    drained->Wait(1);
  }

 private:
  void Run() {
    while (!ended_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ended_ = false;  // the thread ends
  std::thread thread_{[this] { Run(); }};
};

// May be destroyed before the streams have reached it.
struct SP_Event_st {
  const std::shared_ptr<Happenings> happenings = std::make_shared<Happenings>();
};

namespace {

void Record(SP_Stream stream, const std::shared_ptr<Happenings>& happenings) {
  stream->Enqueue([happenings, number = happenings->Ask()] { happenings->Happen(number); });
}

void WaitOn(SP_Stream stream, const std::shared_ptr<Happenings>& happenings) {
  stream->Enqueue([happenings, number = happenings->Last()] { happenings->Wait(number); });
}

void EnqueueCopy(SP_Stream stream, std::function<void()> copy) {
  stream->Enqueue([copy = std::move(copy)] {
    std::this_thread::sleep_for(kCopyTime);
    copy();
  });
}

void CopyToHost(void* host, const void* device, size_t bytes) {
  std::memcpy(host, Memory::Get().At(static_cast<const char*>(device), bytes), bytes);
}
void CopyFromHost(void* device, const void* host, size_t bytes) {
  std::memcpy(Memory::Get().At(static_cast<char*>(device), bytes), host, bytes);
}
void CopyWithin(void* to, const void* from, size_t bytes) {
  std::memmove(Memory::Get().At(static_cast<char*>(to), bytes),
               Memory::Get().At(static_cast<const char*>(from), bytes), bytes);
}

template <typename T>
void Fill(SP_Stream stream, void* device, T pattern, size_t bytes) {
  stream->Enqueue([device, pattern, bytes] {
    T* const at = Memory::Get().At(static_cast<T*>(device), bytes);
    std::fill(at, at + bytes / sizeof(T), pattern);
  });
}

// --- what TensorFlow calls: tensorflow/c/experimental/stream_executor/stream_executor.h ---

void SetStreamExecutor(SP_StreamExecutor* se) {
  *se = {SP_STREAMEXECUTOR_STRUCT_SIZE};
  se->allocate = [](const SP_Device*, uint64_t bytes, int64_t, SP_DeviceMemoryBase* memory) {
    *memory = {SP_DEVICE_MEMORY_BASE_STRUCT_SIZE};
    memory->opaque = Memory::Get().Allocate(bytes);
    memory->size = memory->opaque == nullptr ? 0 : bytes;
  };
  se->deallocate = [](const SP_Device*, SP_DeviceMemoryBase*) {};
  se->host_memory_allocate = [](const SP_Device*, uint64_t bytes) {
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  };
  se->host_memory_deallocate = [](const SP_Device*, void* memory) { std::free(memory); };
  se->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  se->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = static_cast<int64_t>(Memory::Get().free_bytes());
    *total = kMemoryBytes;
    return 1;
  };

  se->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status*) {
    *stream = new SP_Stream_st;
  };
  se->destroy_stream = [](const SP_Device*, SP_Stream stream) { delete stream; };
  se->create_stream_dependency = [](const SP_Device*, SP_Stream dependent, SP_Stream other,
                                    TF_Status*) {
    const auto done = std::make_shared<Happenings>();
    Record(other, done);
    WaitOn(dependent, done);
  };
  se->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status*) {};

  se->create_event = [](const SP_Device*, SP_Event* event, TF_Status*) {
    *event = new SP_Event_st;
  };
  se->destroy_event = [](const SP_Device*, SP_Event event) { delete event; };
  se->get_event_status = [](const SP_Device*, SP_Event event) {
    return event->happenings->IsPending() ? SE_EVENT_PENDING : SE_EVENT_COMPLETE;
  };
  se->record_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    Record(stream, event->happenings);
  };
  se->wait_for_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    WaitOn(stream, event->happenings);
  };
  se->block_host_for_event = [](const SP_Device*, SP_Event event, TF_Status*) {
    event->happenings->Wait(event->happenings->Last());
  };
  se->block_host_until_done = [](const SP_Device*, SP_Stream stream, TF_Status*) {
    stream->Drain();
  };
  se->synchronize_all_activity = [](const SP_Device*, TF_Status*) {};
  se->host_callback = [](const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback,
                         void* argument) -> TF_Bool {
    stream->Enqueue([callback, argument] {
      const std::unique_ptr<TF_Status, void (*)(TF_Status*)> status(TF_NewStatus(),
                                                                    TF_DeleteStatus);
      callback(argument, status.get());
    });
    return 1;
  };

  se->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status*) { *timer = nullptr; };
  se->destroy_timer = [](const SP_Device*, SP_Timer) {};
  se->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};

  se->memcpy_dtoh = [](const SP_Device*, SP_Stream stream, void* host,
                       const SP_DeviceMemoryBase* device, uint64_t bytes, TF_Status*) {
    EnqueueCopy(stream, [host, from = device->opaque, bytes] { CopyToHost(host, from, bytes); });
  };
  se->memcpy_htod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* device,
                       const void* host, uint64_t bytes, TF_Status*) {
    EnqueueCopy(stream, [to = device->opaque, host, bytes] { CopyFromHost(to, host, bytes); });
  };
  se->memcpy_dtod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const SP_DeviceMemoryBase* from, uint64_t bytes, TF_Status*) {
    EnqueueCopy(stream,
                [to = to->opaque, from = from->opaque, bytes] { CopyWithin(to, from, bytes); });
  };
  se->sync_memcpy_dtoh = [](const SP_Device*, void* host, const SP_DeviceMemoryBase* device,
                            uint64_t bytes,
                            TF_Status*) { CopyToHost(host, device->opaque, bytes); };
  se->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* device, const void* host,
                            uint64_t bytes,
                            TF_Status*) { CopyFromHost(device->opaque, host, bytes); };
  se->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                            const SP_DeviceMemoryBase* from, uint64_t bytes,
                            TF_Status*) { CopyWithin(to->opaque, from->opaque, bytes); };
  se->mem_zero = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* device, uint64_t bytes,
                    TF_Status*) { Fill<uint8_t>(stream, device->opaque, 0, bytes); };
  se->memset = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* device, uint8_t pattern,
                  uint64_t bytes, TF_Status*) { Fill(stream, device->opaque, pattern, bytes); };
  se->memset32 = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* device,
                    uint32_t pattern, uint64_t bytes,
                    TF_Status*) { Fill(stream, device->opaque, pattern, bytes); };
}

void SetPlatformFunctions(SP_PlatformFns* fns) {
  *fns = {SP_PLATFORM_FNS_STRUCT_SIZE};
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status*) { *count = 1; };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
    *params->device = {SP_DEVICE_STRUCT_SIZE};
    params->device->ordinal = params->ordinal;
    params->device->hardware_name = kDeviceType;
    params->device->device_vendor = "";
    params->device->pci_bus_id = "";
  };
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
    *params->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE};
  };
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = [](const SP_Platform*, SE_CreateStreamExecutorParams* params,
                                   TF_Status*) { SetStreamExecutor(params->stream_executor); };
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* timer_fns, TF_Status*) {
    *timer_fns = {SP_TIMER_FNS_STRUCT_SIZE};
    timer_fns->nanoseconds = [](SP_Timer) { return uint64_t{0}; };
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

// --- kernels; TensorFlow itself has those that do not read a tensor for every device ---

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// out = function(a, b), element by element, when the stream comes to it.
template <typename Function>
void Enqueue(OpKernelContext* ctx, const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::unique_ptr<TF_Status, void (*)(TF_Status*)> status(TF_NewStatus(), TF_DeleteStatus);
  SP_Stream const stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(ctx), status.get());
  OP_REQUIRES(ctx, stream != nullptr, absl::InternalError(TF_Message(status.get())));
  stream->Enqueue([a, b, out] {
    const size_t bytes = out.TotalBytes();
    auto at = [bytes](const Tensor& tensor) {
      return Memory::Get().At(static_cast<float*>(tensor.data()), bytes);
    };
    if (bytes != 0) std::transform(at(a), at(a) + out.NumElements(), at(b), at(out), Function());
  });
}

template <typename Function>
class BinaryOp : public OpKernel {
 public:
  explicit BinaryOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    const Tensor& a = ctx->input(0);
    const Tensor& b = ctx->input(1);
    OP_REQUIRES(ctx, a.shape() == b.shape(), absl::InvalidArgumentError("shapes differ"));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, a.shape(), &out));
    Enqueue<Function>(ctx, a, b, *out);
  }
};

// No kernel writes to a tensor that others may read, so a variable can be the output of any kernel.
class AssignOp : public OpKernel {
 public:
  explicit AssignOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(ctx, tensorflow::LookupOrCreateResource<tensorflow::Var>(
                            ctx, tensorflow::HandleFromInput(ctx, 0), &variable,
                            [](tensorflow::Var** created) {
                              *created = new tensorflow::Var(tensorflow::DT_FLOAT);
                              return absl::OkStatus();
                            }));
    tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = ctx->input(1);
    variable->is_initialized = true;
  }
};

template <typename Function>
class AssignUpdateOp : public OpKernel {
 public:
  explicit AssignUpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(ctx,
                   tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), &variable));
    tensorflow::mutex_lock lock(*variable->mu());
    const Tensor& change = ctx->input(1);
    OP_REQUIRES(ctx, variable->tensor()->shape() == change.shape(),
                absl::InvalidArgumentError("shapes differ"));
    Tensor updated;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tensorflow::DT_FLOAT, change.shape(), &updated));
    Enqueue<Function>(ctx, *variable->tensor(), change, updated);
    *variable->tensor() = updated;
  }
};

// In host memory, as TensorFlow computes with the small integers of a GPU.
class NegateOnHostOp : public OpKernel {
 public:
  explicit NegateOnHostOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    const auto in = ctx->input(0).flat<float>();
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(0).shape(), &out));
    std::transform(in.data(), in.data() + in.size(), out->flat<float>().data(), std::negate<>());
  }
};

REGISTER_KERNEL_BUILDER(Name("AddV2").Device(kDeviceType).TypeConstraint<float>("T"),
                        BinaryOp<std::plus<float>>);
REGISTER_KERNEL_BUILDER(Name("Mul").Device(kDeviceType).TypeConstraint<float>("T"),
                        BinaryOp<std::multiplies<float>>);
REGISTER_KERNEL_BUILDER(
    Name("Neg").Device(kDeviceType).HostMemory("x").HostMemory("y").TypeConstraint<float>("T"),
    NegateOnHostOp);
REGISTER_KERNEL_BUILDER(Name("AssignVariableOp")
                            .Device(kDeviceType)
                            .HostMemory("resource")
                            .TypeConstraint<float>("dtype"),
                        AssignOp);
REGISTER_KERNEL_BUILDER(Name("AssignAddVariableOp")
                            .Device(kDeviceType)
                            .HostMemory("resource")
                            .TypeConstraint<float>("dtype"),
                        AssignUpdateOp<std::plus<float>>);

}  // namespace

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  *params->platform = {SP_PLATFORM_STRUCT_SIZE};
  params->platform->name = kDeviceType;
  params->platform->type = kDeviceType;
  params->platform->use_bfc_allocator = 1;
  SetPlatformFunctions(params->platform_fns);
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}

// The kernels are registered when the library is loaded.
extern "C" void TF_InitKernel() {}

// What a transport that leaves a copy out does: it reads memory of the device, or gives the device
// a tensor in host memory.
extern "C" void ReadOnHost() {
  const volatile char* const address = static_cast<char*>(Memory::Get().Allocate(1));
  static_cast<void>(*address);
}
extern "C" void UseHostMemory() {
  char tensor = 0;
  Memory::Get().At(&tensor, 1);
}
