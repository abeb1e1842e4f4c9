// State in bfloat16: widened, worked on as float32 is, and rounded back stochastically, in one loop. What the sums of a chunk
// need is left in buffers, so that they are added in the order of float32 state.

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

struct Draws {  // of one rounding of a chunk
    uint16_t key, factor;
};

// ``number`` tells the roundings of a step apart.
INLINE Draws draws(uint32_t key, uint32_t number) {
    const uint32_t word = mix(key + number);
    return {uint16_t(word), uint16_t(word >> 16 | 1)};
}

INLINE uint16_t round_up_or_down(float x, uint16_t spread, Draws d) {  // up where what is cut off and the draw carry over
    const uint16_t draw = uint16_t(uint16_t(spread ^ d.key) * d.factor);
    return uint16_t((bits_as<uint32_t>(x) + draw) >> 16);
}

// The whole filter, its variance as the factor P_aa, P_slope, P_rest. a and b go to the buffers as they are stored: the step
// follows those. Returns the number of missing gradients.
template <bool FIRST>
INLINE double rounded_loop(const Rounded& t, int n, const Numbers<float>& k, float* a_buffer, float* b_buffer, float* prec_buffer) {
    const float q = k.q, r = k.r, q_2 = k.q_2, decay = k.decay, limit = k.limit, factor = k.factor, a_0 = k.a_0;
    const float start_m = k.start_m;
    const Draws for_a = draws(t.key, 0), for_b = draws(t.key, 1), for_aa = draws(t.key, 2), for_slope = draws(t.key, 3),
                for_rest = draws(t.key, 4);
    float missing = 0;
    const float *__restrict mean_ = t.mean, *__restrict grad_ = t.grad;
    const uint16_t *__restrict spread_ = t.spread, *__restrict prec_ = t.prec;
    uint16_t *__restrict a_ = t.a, *__restrict b_ = t.b, *__restrict aa_ = t.P_1, *__restrict slope_ = t.P_2;
    uint16_t* __restrict rest_ = t.P_3;
    float *__restrict a_to = a_buffer, *__restrict b_to = b_buffer, *__restrict prec_to = prec_buffer;
#pragma omp simd reduction(+ : missing)
    for (int i = 0; i < n; ++i) {
        const float raw = grad_[i], m = mean_[i] * decay;
        const bool seen = std::fabs(raw) <= limit;  // false for NaN too
        const float slope = Brain::load(slope_[i]), rest = Brain::load(rest_[i]);
        float aa = Brain::load(aa_[i]), a = Brain::load(a_[i]), b = Brain::load(b_[i]);
        const float ab = slope * aa;
        float bb = rest + slope * ab;
        const float det = aa * rest + q * (aa + bb) + q_2;
        aa += q;
        bb += q;
        const float h = ab + m * aa, r_aa = r * aa, sum = r_aa + det;
        const float inverse_v = aa / (r_aa + (h * h + det));
        const float K_a = h * inverse_v, K_b = (bb + m * ab) * inverse_v;
        const float inverse = 1.0f / (seen ? sum : aa);
        const float g = seen ? factor * raw : 0.0f;
        if (FIRST) b = g + (seen ? start_m : -a_0) * m;
        const float error = seen ? g - (a * m + b) : 0.0f;
        a = a + K_a * error;
        b = b + K_b * error;
        const uint16_t spread = spread_[i], a_stored = round_up_or_down(a, spread, for_a);
        const uint16_t b_stored = round_up_or_down(b, spread, for_b);
        a_[i] = a_stored;
        b_[i] = b_stored;
        aa_[i] = round_up_or_down(seen ? sum * inverse_v : aa, spread, for_aa);
        slope_[i] = round_up_or_down((seen ? r * ab - m * det : ab) * inverse, spread, for_slope);
        rest_[i] = round_up_or_down((seen ? r * det : det) * inverse, spread, for_rest);
        a_to[i] = Brain::load(a_stored);
        b_to[i] = Brain::load(b_stored);
        prec_to[i] = Brain::load(prec_[i]);
        missing += seen ? 0.0f : 1.0f;
    }
    return double(missing);
}

INLINE Sums observe_chunk(const Rounded& t, int n, bool first, const Numbers<float>& k) {
    float a[CHUNK], b[CHUNK], prec[CHUNK];
    const double missing = first ? rounded_loop<true>(t, n, k, a, b, prec) : rounded_loop<false>(t, n, k, a, b, prec);
    Sums sums = probe_chunk(Chunk<float>{t.mean, t.grad, prec, a, b, nullptr, nullptr, nullptr}, n, k);
    sums.missing = missing;
    return sums;
}

INLINE Sums probe_chunk(const Rounded& t, int n, const Numbers<float>& k) {
    float a[CHUNK], b[CHUNK], prec[CHUNK];
    widen_chunk<Brain>(t.prec, prec, n);
    widen_chunk<Brain>(t.a, a, n);
    widen_chunk<Brain>(t.b, b, n);
    return probe_chunk(Chunk<float>{t.mean, t.grad, prec, a, b, nullptr, nullptr, nullptr}, n, k);
}

INLINE Sums move_chunk(const Rounded& t, int n, const Numbers<float>& k) {
    const float rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, floor = k.floor;
    const float nu = k.nu, inverse_total = k.inverse_total, length = k.length;
    const Draws for_prec = draws(t.key, 5);
    float x_[CHUNK], old_[CHUNK];
    float* __restrict mean_ = t.mean;
    uint16_t* __restrict prec_ = t.prec;
    const uint16_t *__restrict a_ = t.a, *__restrict b_ = t.b, *__restrict spread_ = t.spread;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const float m = mean_[i] * decay, a = Brain::load(a_[i]), prec = Brain::load(prec_[i]);
        const float num = (a * m + Brain::load(b_[i])) + rho_lam * m;
        const float A = (a > floor ? a : floor) + rho_lam;
        const float x = num / (s_w * A + eta_w * prec);
        mean_[i] = m - length * x;
        prec_[i] = round_up_or_down((A + nu * prec) * inverse_total, spread_[i], for_prec);
        x_[i] = x;
        old_[i] = prec;
    }
    return {weighted_squares(x_, old_, n), 0, 0, 0};
}

}  // namespace
