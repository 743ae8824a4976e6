#include "load.h"

#include <thread>

#include "rpc.h"

namespace tensorwire::raw {

void Load::Fail(const std::string& error) {
  std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = error.empty() ? "a response of another size" : error;
}

void Load::Finish() {
  std::lock_guard lock(mutex_);
  last_us_ = NowUs();
  finished_ = true;
}

std::string Load::Wait(double timeout_s, double* seconds, float* latency_us) {
  std::unique_lock lock(mutex_);
  // A condition variable would need glibc 2.30, or wait by the wall clock, which may be set.
  for (const double until_us = NowUs() + timeout_s * 1e6; !finished_ && NowUs() < until_us;) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    lock.lock();
  }
  if (!error_.empty()) return error_;
  if (!finished_) {
    return "only " + std::to_string(ended_.load()) + " of " + std::to_string(began_.size()) +
           " requests were answered in time";
  }
  *seconds = (last_us_ - began_[0]) / 1e6;
  for (size_t i = 0; i < took_us_.size(); ++i) latency_us[i] = static_cast<float>(took_us_[i]);
  return "";
}

namespace {

Server* the_server = nullptr;
Client* the_client = nullptr;

const char* Words(std::string error) {
  static std::string words;
  words = std::move(error);
  return words.empty() ? nullptr : words.c_str();
}

}  // namespace
}  // namespace tensorwire::raw

using namespace tensorwire::raw;

const char* tensorwire_rpc_implementation() {
  static const std::string name = Implementation();
  return name.c_str();
}

const char* tensorwire_rpc_serve(const char* host, int port, int threads, int64_t response_bytes,
                                 int* bound_port) {
  the_server = MakeServer().release();
  return Words(the_server->Listen(host, port, threads, response_bytes, bound_port));
}

const char* tensorwire_rpc_connect(const char* address, int channels, int threads,
                                   double timeout_s) {
  the_client = MakeClient().release();
  return Words(the_client->Connect(address, channels, threads, timeout_s));
}

const char* tensorwire_rpc_ask(int64_t requests, int concurrency, int64_t request_bytes,
                               int64_t response_bytes, double timeout_s, double* seconds,
                               float* latency_us) {
  // Kept, so that all of its pages are mapped the next time.
  static std::shared_ptr<const std::string> payload;
  if (payload == nullptr || payload->size() != static_cast<size_t>(request_bytes)) {
    payload = std::make_shared<const std::string>(static_cast<size_t>(request_bytes), 'r');
  }
  const auto load = std::make_shared<Load>(requests, static_cast<uint64_t>(response_bytes));
  for (int i = 0; i < concurrency; ++i) {
    the_client->Ask(load, i % the_client->channels(), payload);
  }
  return Words(load->Wait(timeout_s, seconds, latency_us));
}
