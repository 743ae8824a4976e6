#pragma once

#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "graph_rewrite.h"

namespace tensorwire::plugin {

// Half the bytes: in a step that trains, the floats of variables that it pulls and the gradients
// that it pushes cross from task to task in 16 bits. Results change, so it is not one of
// kExactRewrites. docs/decisions/rewrites.md.

// Its parameters are `dtype`, "bfloat16" or "float16", and `exclude`: patterns of names as a shell
// has them, with commas between them.
constexpr RewriteSwitch kWireDtype{"tensorwire_wire_dtype", "TENSORWIRE_WIRE_DTYPE"};
constexpr char kWireDtypeExcludeVariable[] = "TENSORWIRE_WIRE_DTYPE_EXCLUDE";

// Operations of ours. The first one takes floats and yields its attribute T, bfloat16 or half:
// rounded to the nearest, even if halfway; or by chance (attribute `by_chance`), up or down so that
// the mean of many is the float. What is finite stays finite in bfloat16. The second one yields the
// floats.
constexpr char kNarrowOp[] = "TensorwireNarrow_import_tensorwire_tf_in_every_task";
constexpr char kWidenOp[] = "TensorwireWiden_import_tensorwire_tf_in_every_task";

// The tensors that cross in 16 bits in graphs of this process, and those that do not because their
// variable is excluded.
class NarrowedTensors {
 public:
  struct Entry {
    std::string tensor;     // as a graph names it: "embedding_lookup:0"
    std::string variables;  // those that it is read from or updates, with ", " between them
    std::string way;        // "pull" or "push"
    std::string dtype;      // "bfloat16", "float16"; "float32" if excluded

    bool operator<(const Entry& other) const {
      return std::tie(tensor, variables, way, dtype) <
             std::tie(other.tensor, other.variables, other.way, other.dtype);
    }
  };

  static NarrowedTensors& Get();
  void Add(Entry entry);
  std::set<Entry> entries() const;

 private:
  mutable std::mutex mutex_;
  std::set<Entry> entries_;  // under mutex_
};

}  // namespace tensorwire::plugin
