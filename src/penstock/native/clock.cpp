// For benchmarks: how long a cycle is.
#include "api.h"

// n multiplications that each wait for the one before: three cycles each on x86-64 and most ARM processors.
PS_EXPORT std::uint64_t ps_chain(i64 n) {
    std::uint64_t x = 1;
    for (i64 i = 0; i < n; i++) {
        x *= 0x9e3779b97f4a7c15;
        asm volatile("" : "+r"(x));  // no shortcut
    }
    return x;
}
