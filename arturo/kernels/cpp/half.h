// Half precision: numbers in 16 bits, and a chunk of them. A half-precision parameter has a float32 mean beside it: the mean
// follows the parameter where somebody else wrote it, the parameter follows the mean after a step.

#pragma once

#include <cstdint>
#include <cstring>

#include "chunk.h"

namespace {

template <class To, class From>
INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

struct Brain {  // bfloat16
    static INLINE_MEMBER float load(uint16_t x) { return bits_as<float>(uint32_t(x) << 16); }
    static INLINE_MEMBER uint16_t nearest(float x) {  // ties to even; x is never NaN
        const uint32_t u = bits_as<uint32_t>(x);
        return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
};

struct Half {  // float16
    static INLINE_MEMBER float load(uint16_t x) {
        const uint32_t sign = uint32_t(x & 0x8000u) << 16, rest = uint32_t(x & 0x7fffu) << 13;
        const float finite = bits_as<float>(rest) * 0x1p112f;  // moves the exponent's bias; exact, subnormals too
        return bits_as<float>(sign | (rest >= 0x0f800000u ? rest | 0x7f800000u : bits_as<uint32_t>(finite)));
    }
    static INLINE_MEMBER uint16_t nearest(float x) {
        const uint32_t u = bits_as<uint32_t>(x), sign = u & 0x80000000u, size = u ^ sign;
        const uint32_t normal = size - 0x38000000u + 0xfffu + ((size >> 13) & 1u);  // new bias; to nearest, ties to even
        const float lifted = bits_as<float>(size) + 0.5f;                           // subnormals: the addition rounds
        const uint32_t subnormal = bits_as<uint32_t>(lifted) - 0x3f000000u;
        return uint16_t(sign >> 16 | (size < 0x38800000u ? subnormal : size >= 0x477ff000u ? 0x7c00u : normal >> 13));
    }
};

template <class H>
INLINE void widen_chunk(const uint16_t* from, float* to, int n) {
    const uint16_t* __restrict from_ = from;
    float* __restrict to_ = to;
#pragma omp simd
    for (int i = 0; i < n; ++i) to_[i] = H::load(from_[i]);
}

template <class H>
INLINE void follow_chunk(const uint16_t* param, float* mean, int n) {  // where it is not the rounded mean it wins
    const uint16_t* __restrict param_ = param;
    float* __restrict mean_ = mean;
#pragma omp simd
    for (int i = 0; i < n; ++i) mean_[i] = H::nearest(mean_[i]) == param_[i] ? mean_[i] : H::load(param_[i]);
}

template <class H>
INLINE void narrow_chunk(const float* mean, uint16_t* param, int n) {
    const float* __restrict mean_ = mean;
    uint16_t* __restrict param_ = param;
#pragma omp simd
    for (int i = 0; i < n; ++i) param_[i] = H::nearest(mean_[i]);
}

}  // namespace
