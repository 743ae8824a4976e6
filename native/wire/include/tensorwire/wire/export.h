#pragma once

// Marks what leaves libtensorwire.so; everything else is hidden.
#if defined(TENSORWIRE_BUILDING)
#define TENSORWIRE_API __attribute__((visibility("default")))
#else
#define TENSORWIRE_API
#endif
