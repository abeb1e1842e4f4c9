// What compilers and systems do differently.

#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12  // AVX-512 with its 16-bit operations: a seventh off the time with bfloat16 state
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define TARGETS  // functions may be written for one instruction set
#define TARGET_V4 __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#define TARGET_V3 __attribute__((target("arch=x86-64-v3")))
static inline int processor_level() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v4") ? 4 : __builtin_cpu_supports("x86-64-v3") ? 3 : 1;
}
#else
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define CLONES
#endif

#ifdef _MSC_VER
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef _MSC_VER
#define PREFETCH(address)
#else
#define PREFETCH(address) __builtin_prefetch(address)
#endif

#ifdef _OPENMP
#include <omp.h>
static inline int thread_number() { return omp_get_thread_num(); }
#else
static inline int thread_number() { return 0; }
#endif

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif
