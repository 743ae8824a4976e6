#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tensorwire::plugin {

// Whether a node is the handle of a table that grows with its keys: of TensorFlow, or of another
// library (TFRA).
bool IsTable(const tensorflow::NodeDef& node);

struct TableSize {
  std::string name;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;  // of a key and its value
};

// The tables in the graphs that a task executes. Thread-safe.
class Tables {
 public:
  // `resources`: of the device that executes the graph. Must live as long as this.
  void Note(const tensorflow::GraphDef& graph, tensorflow::ResourceMgr* resources);
  // Of those that exist now.
  std::vector<TableSize> Sizes() const;

 private:
  static constexpr size_t kMostTables = 4096;
  using ContainerAndName = std::pair<std::string, std::string>;

  mutable std::mutex mutex_;
  std::map<ContainerAndName, tensorflow::ResourceMgr*> tables_;
};

}  // namespace tensorwire::plugin
