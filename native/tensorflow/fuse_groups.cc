#include "fuse_groups.h"

#include <map>
#include <tuple>
#include <utility>

#include "graph_depths.h"
#include "graph_rewrite.h"
#include "tensorflow/core/framework/types.h"

namespace tensorwire::plugin {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

absl::Status FindFuseGroups(const Graph& graph, bool keep_floats, std::vector<FuseGroup>* groups) {
  DeviceNames devices;
  Depths depths(graph, &devices);
  bool usable = false;
  if (absl::Status s = depths.Compute(&usable); !s.ok() || !usable) return s;
  // Ordered, so that a graph is always rewritten in the same way.
  using GroupKey = std::tuple<std::string, std::string, int>;
  std::map<GroupKey, std::map<std::pair<int, int>, Crossing>> found;
  for (const Edge* edge : graph.edges()) {
    if (edge->IsControlEdge() || !depths.CrossesTasks(*edge) || !depths.OutsideLoops(*edge)) {
      continue;
    }
    Node* const src = edge->src();
    const tensorflow::DataType dtype = src->output_type(edge->src_output());
    if (tensorflow::IsRefType(dtype) || (keep_floats && dtype == tensorflow::DT_FLOAT)) continue;
    const std::string& from = src->assigned_device_name();
    const std::string& to = edge->dst()->assigned_device_name();
    if (!devices.IsCpu(from) || !devices.IsCpu(to)) continue;
    Crossing& crossing = found[{from, to, depths.Of(*src)}][{src->id(), edge->src_output()}];
    crossing.src = src;
    crossing.output = edge->src_output();
    crossing.edges.push_back(edge);
  }
  for (auto& [key, crossings] : found) {
    if (crossings.size() < 2) continue;
    FuseGroup group{std::get<0>(key), std::get<1>(key), {}};
    for (auto& [output, crossing] : crossings) {
      group.may_be_dead = group.may_be_dead || depths.MayBeDead(*crossing.src);
      group.crossings.push_back(std::move(crossing));
    }
    groups->push_back(std::move(group));
  }
  return absl::OkStatus();
}

}  // namespace tensorwire::plugin
