#pragma once

namespace tensorwire::plugin {

// The one T of this process. It is never destroyed, because threads may outlive static destruction.
template <typename T>
T& Single() {
  static T* const one = new T;
  return *one;
}

}  // namespace tensorwire::plugin
