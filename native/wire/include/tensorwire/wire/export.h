#pragma once

// Marks the exported symbols of libtensorwire.so; all others are hidden.
#if defined(TENSORWIRE_BUILDING)
#define TENSORWIRE_API __attribute__((visibility("default")))
#else
#define TENSORWIRE_API
#endif
