#include "metrics/transfer_log.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/platform/env.h"
#include "tensorwire/wire/clock.h"

namespace tensorwire::plugin {

void TransferLog::Record(int64_t step_id, const std::string& key, int64_t bytes, int64_t from_us,
                         int64_t until_us, int64_t waited_us) {
  tensorflow::Rendezvous::ParsedKey parsed;
  if (!tensorflow::Rendezvous::ParseKey(key, &parsed).ok()) return;
  // TensorFlow's times are of the wall clock.
  const int64_t behind_us =
      static_cast<int64_t>(tensorflow::Env::Default()->NowMicros()) - wire::NowUs();
  const std::string edge(parsed.edge_name);
  const std::string src(parsed.src_device);
  const std::string dst(parsed.dst_device);
  log_.RecordDataTransfer(step_id, from_us + behind_us, std::max(from_us + 1, until_us) + behind_us,
                          edge, src, dst, bytes,
                          absl::StrCat("[", bytes, "B] ", edge, " from ", src, " to ", dst,
                                       "; waited ", waited_us, " us"),
                          "RecvTensor");
}

}  // namespace tensorwire::plugin
