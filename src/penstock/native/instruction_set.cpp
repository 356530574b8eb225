// Which version of the products this process uses.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(PENSTOCK_NEON_DOT)
#include <sys/auxv.h>
#endif

namespace {

#if defined(PENSTOCK_AVX2)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

#if defined(PENSTOCK_AVX512)
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("gfni");
}
#endif

#if defined(PENSTOCK_NEON_DOT)
bool has_neon_dot() {
#if defined(__APPLE__)
    int has = 0;
    std::size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#endif
}
#endif

}  // namespace

const Kernels* kernels_named(const char* name) {
    auto wanted = [name](const char* candidate) { return !name || !*name || std::strcmp(name, candidate) == 0; };
#if defined(PENSTOCK_AVX512)
    if (wanted("avx512") && has_avx512()) return &avx512_kernels();
#endif
#if defined(PENSTOCK_AVX2)
    if (wanted("avx2") && has_avx2()) return &avx2_kernels();
#endif
#if defined(PENSTOCK_NEON_DOT)
    if (wanted("neon_dot") && has_neon_dot()) return &neon_dot_kernels();
#endif
#if defined(PENSTOCK_NEON)
    if (wanted("neon")) return &neon_kernels();
#endif
    return wanted("scalar") ? &scalar_kernels() : nullptr;
}

static const Kernels* chosen() {
    static const Kernels* const kernels = kernels_named(std::getenv("PENSTOCK_ISA"));
    return kernels;
}

const Kernels& kernels() { return *chosen(); }

PS_EXPORT const char* ps_instruction_set() { return chosen() ? chosen()->name : nullptr; }
