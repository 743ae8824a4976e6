#include "metrics/counters.h"

namespace tensorwire::plugin {

PluginCounters& Counters() {
  static PluginCounters* counters = new PluginCounters;
  return *counters;
}

}  // namespace tensorwire::plugin
