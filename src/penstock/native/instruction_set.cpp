// Which version of the products this process uses.
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "kernels.h"

#if defined(PENSTOCK_AVX2)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(PENSTOCK_NEON_DOT)
#include <sys/auxv.h>
#endif

namespace {

#if defined(PENSTOCK_AVX2)
// Read from the processor: compilers differ in the names they know for __builtin_cpu_supports.
struct Processor {
    unsigned one = 0, seven_b = 0, seven_c = 0;  // ecx of leaf 1, ebx and ecx of leaf 7
    unsigned kept = 0;                           // registers that the system keeps for programs

    Processor() {
        unsigned a, b, c, d;
        if (__get_cpuid(1, &a, &b, &c, &d)) one = c;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
            seven_b = b;
            seven_c = c;
        }
        if (all(one, {27})) asm("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
    }

    static bool all(unsigned word, std::initializer_list<int> bits) {
        for (int bit : bits)
            if (!(word >> bit & 1)) return false;
        return true;
    }
};

bool has_avx2() {
    const Processor p;
    return Processor::all(p.kept, {1, 2}) && Processor::all(p.one, {12, 28, 29}) &&  // FMA, AVX, F16C
           Processor::all(p.seven_b, {3, 5, 8});                                     // BMI, AVX2, BMI2
}

bool has_avx512_vnni() {
    const Processor p;
    return has_avx2() && Processor::all(p.kept, {5, 6, 7}) &&
           Processor::all(p.seven_b, {16, 17, 30, 31}) &&  // AVX-512 F, DQ, BW, VL
           Processor::all(p.seven_c, {11});                // VNNI
}

bool has_avx512() { return has_avx512_vnni() && Processor::all(Processor().seven_c, {1, 8}); }  // VBMI, GFNI
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
    if (wanted("avx512_vnni") && has_avx512_vnni()) return &avx512_vnni_kernels();
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
