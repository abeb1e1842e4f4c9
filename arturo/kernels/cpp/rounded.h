// State in bfloat16: a chunk of it is widened into buffers, worked on as float32 is, and rounded back stochastically.

#pragma once

#include <cstdint>

#include "chunk.h"
#include "formulas.h"
#include "half.h"

namespace {

// The bits of stochastic rounding; arturo/core/rounding.py has the same in tensor operations.
INLINE uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

INLINE uint32_t chunk_key(uint32_t seed, uint64_t chunk) { return mix(mix(seed + uint32_t(chunk >> 32)) ^ uint32_t(chunk)); }

struct Spread {  // 256 numbers that look like none in particular
    uint16_t of[CHUNK];
    constexpr Spread() : of() {
        for (uint32_t i = 0; i < CHUNK; ++i) {
            uint16_t x = uint16_t(i * 0x88b5u);
            x = uint16_t((x ^ (x >> 7)) * 0xdb2du);
            of[i] = uint16_t(x ^ (x >> 9));
        }
    }
};
constexpr Spread SPREAD;

struct Rounded {  // a chunk as stored
    float* mean;
    const float* grad;
    uint16_t *prec, *a, *b, *P_1, *P_2, *P_3;
    const uint16_t* spread;  // SPREAD from the first entry on
    uint32_t key;            // of the rounding bits
};

struct Widened {
    float prec[CHUNK], a[CHUNK], b[CHUNK], P_1[CHUNK], P_2[CHUNK], P_3[CHUNK];
};

// Up where what is cut off and the draw carry over. ``number`` tells the roundings of a step apart.
INLINE void round_chunk(const float* from, uint16_t* to, int n, const Rounded& t, uint32_t number) {
    const uint32_t word = mix(t.key + number);
    const uint16_t key = uint16_t(word), factor = uint16_t(word >> 16 | 1);
    const uint16_t* __restrict spread_ = t.spread;
    const float* __restrict from_ = from;
    uint16_t* __restrict to_ = to;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const uint16_t draw = uint16_t(uint16_t(spread_[i] ^ key) * factor);
        to_[i] = uint16_t((bits_as<uint32_t>(from_[i]) + draw) >> 16);
    }
}

// variance_loop of the factor P_aa, P_slope, P_rest.
template <bool ALL>
INLINE void factor_loop(const Chunk<float>& t, int n, const Numbers<float>& k, float* K_a, float* K_b) {
    const float q = k.q, r = k.r, q_2 = k.q_2, decay = k.decay, limit = k.limit;
    const float *__restrict mean_ = t.mean, *__restrict grad_ = t.grad;
    float *__restrict aa_ = t.P_1, *__restrict slope_ = t.P_2, *__restrict rest_ = t.P_3;
    float *__restrict K_a_ = K_a, *__restrict K_b_ = K_b;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const float m = mean_[i] * decay, slope = slope_[i], rest = rest_[i];
        float aa = aa_[i];
        const float ab = slope * aa;
        float bb = rest + slope * ab;
        const float det = aa * rest + q * (aa + bb) + q_2;
        aa += q;
        bb += q;
        const float h = ab + m * aa, r_aa = r * aa, sum = r_aa + det;
        const float inverse_v = aa / (r_aa + (h * h + det));
        K_a_[i] = h * inverse_v;
        K_b_[i] = (bb + m * ab) * inverse_v;
        const bool seen = ALL || std::fabs(grad_[i]) <= limit;
        const float inverse = 1.0f / (seen ? sum : aa);
        aa_[i] = seen ? sum * inverse_v : aa;
        slope_[i] = (seen ? r * ab - m * det : ab) * inverse;
        rest_[i] = (seen ? r * det : det) * inverse;
    }
}

INLINE Chunk<float> widen_model(const Rounded& t, int n, Widened& w) {
    widen_chunk<Brain>(t.prec, w.prec, n);
    widen_chunk<Brain>(t.a, w.a, n);
    widen_chunk<Brain>(t.b, w.b, n);
    return {t.mean, t.grad, w.prec, w.a, w.b, w.P_1, w.P_2, w.P_3};
}

INLINE Sums observe_chunk(const Rounded& t, int n, bool first, const Numbers<float>& k) {
    Widened w;
    fetch_next(t.mean, t.grad);
    const Chunk<float> c = widen_model(t, n, w);
    fetch_next(t.P_1, t.P_2, t.P_3);
    widen_chunk<Brain>(t.P_1, w.P_1, n);
    widen_chunk<Brain>(t.P_2, w.P_2, n);
    widen_chunk<Brain>(t.P_3, w.P_3, n);
    float K_a[CHUNK], K_b[CHUNK];
    double missing = 0;
    if (!first && all_seen(t.grad, n, k.limit)) {
        factor_loop<true>(c, n, k, K_a, K_b);
        model_loop<true, false>(c, n, first, k, K_a, K_b);
    } else {
        factor_loop<false>(c, n, k, K_a, K_b);
        missing = model_loop<false, false>(c, n, first, k, K_a, K_b).missing;
    }
    fetch_next(t.a, t.b, t.prec);
    round_chunk(w.a, t.a, n, t, 0);
    round_chunk(w.b, t.b, n, t, 1);
    round_chunk(w.P_1, t.P_1, n, t, 2);
    round_chunk(w.P_2, t.P_2, n, t, 3);
    round_chunk(w.P_3, t.P_3, n, t, 4);
    widen_chunk<Brain>(t.a, w.a, n);  // the step follows the model as it is stored
    widen_chunk<Brain>(t.b, w.b, n);
    Sums sums = probe_chunk(c, n, k);
    sums.missing = missing;
    return sums;
}

INLINE Sums probe_chunk(const Rounded& t, int n, const Numbers<float>& k) {
    Widened w;
    return probe_chunk(widen_model(t, n, w), n, k);
}

INLINE Sums move_chunk(const Rounded& t, int n, const Numbers<float>& k) {
    Widened w;
    const Sums sums = move_chunk(widen_model(t, n, w), n, k);
    round_chunk(w.prec, t.prec, n, t, 5);
    return sums;
}

}  // namespace
