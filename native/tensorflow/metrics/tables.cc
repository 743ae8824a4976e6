#include "metrics/tables.h"

#include "absl/strings/match.h"
#include "tensorflow/core/framework/lookup_interface.h"
#include "tensorflow/core/framework/types.h"

namespace tensorwire::plugin {
namespace {

using tensorflow::lookup::LookupInterface;

uint64_t ElementBytes(tensorflow::DataType type, const tensorflow::TensorShape& shape) {
  return static_cast<uint64_t>(shape.num_elements()) *
         static_cast<uint64_t>(tensorflow::DataTypeSize(type));
}

std::string AttrOf(const tensorflow::NodeDef& node, const char* name) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? "" : found->second.s();
}

}  // namespace

bool IsTable(const tensorflow::NodeDef& node) {
  // What begins with HashTable is filled once, from a file.
  return node.attr().contains("key_dtype") && node.attr().contains("value_dtype") &&
         !absl::StartsWith(node.op(), "HashTable");
}

void Tables::Note(const tensorflow::GraphDef& graph, tensorflow::ResourceMgr* resources) {
  for (const tensorflow::NodeDef& node : graph.node()) {
    if (!IsTable(node)) continue;
    std::string container = AttrOf(node, "container");
    if (container.empty()) container = resources->default_container();
    std::string name = AttrOf(node, "shared_name");
    if (name.empty()) name = node.name();
    std::lock_guard lock(mutex_);
    if (tables_.size() < kMostTables) tables_[{std::move(container), std::move(name)}] = resources;
  }
}

std::vector<TableSize> Tables::Sizes() const {
  std::vector<TableSize> sizes;
  std::lock_guard lock(mutex_);
  for (const auto& [key, resources] : tables_) {
    LookupInterface* found = nullptr;
    if (!resources->Lookup(key.first, key.second, &found).ok()) continue;
    const tensorflow::core::RefCountPtr<LookupInterface> table(found);
    sizes.push_back({key.second, table->size(),
                     ElementBytes(table->key_dtype(), table->key_shape()) +
                         ElementBytes(table->value_dtype(), table->value_shape())});
  }
  return sizes;
}

}  // namespace tensorwire::plugin
