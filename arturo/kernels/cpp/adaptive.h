// AdaArturo's passes: arturo/surrogates/learned.py as loops over a chunk, for tensors whose Gaussian is diagonal in the weights
// themselves. tiles.h has those for tensors that are turned.
//
// observe: M += K E, r += w (share E^2 - r) with E = g - M, and three sums; move: mean = keep mean - length M / s. s is never
// stored: a root costs less than four bytes of traffic. Nothing is prefetched by hand: the loops wait for memory, and the
// processor's own prefetching does better (measured: 38 GB/s without, 26 to 31 with).

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "chunk.h"
#include "formulas.h"
#include "half.h"
#include "rounded.h"

namespace {

struct LearnedTensor {  // and the numbers of its step; packed by arturo/kernels/adaptive/native.py
    void *param, *grad, *mean, *M, *r, *start;  // start: where a vector began; null for a matrix
    int64_t size, index, seed;                  // index: of the first entry in the whole parameter; seed: of its rounding bits
    double gain, share, weight, eps, sure, sign, limit;
};

template <class T>
struct LearnedNumbers {
    T gain, share, weight, rest, eps, sure, sign, limit, keep, length;
    bool late;  // the newest counts most: interpolate from there, as torch.lerp does
    template <class Step>  // a LearnedTensor, or another record with these fields
    LearnedNumbers(const Step& t, double keep_, double length_)
        : gain(t.gain), share(t.share), weight(t.weight), rest(T(1) - T(t.weight)), eps(t.eps), sure(t.sure), sign(t.sign),
          limit(t.limit), keep(keep_), length(length_), late(T(t.weight) >= T(0.5)) {}
};

template <class T>
struct LearnedChunk {
    T* mean;
    const T* grad;
    T *M, *r;
    const T* start;
};

struct Kept {  // a chunk of bfloat16 state as stored
    uint16_t *M, *r;
    const uint16_t* spread;  // SPREAD from the first entry on
    uint32_t key;            // of the rounding bits
};

template <class T>
INLINE T noise_scale(T r, T M, T eps, T sure) {
    const T least = sure * M, square = least * least;
    const T s = std::sqrt(r > square ? r : square) + eps;
    return s > std::numeric_limits<T>::min() ? s : std::numeric_limits<T>::min();
}

template <bool LATE, class T>
INLINE T newer(T r, T variance, T weight, T rest) {
    return LATE ? variance - (variance - r) * rest : r + weight * (variance - r);
}

// Filter and noise of bfloat16 state. M and r go to the buffers as they are stored: the step follows those. Returns the number
// of missing gradients.
template <bool LATE>
INLINE double rounded_loop(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    const float gain = k.gain, share = k.share, weight = k.weight, rest = k.rest, sign = k.sign, limit = k.limit;
    const Draws for_M = draws(kept.key, 0), for_r = draws(kept.key, 1);
    const float* __restrict grad_ = t.grad;
    const uint16_t* __restrict spread_ = kept.spread;
    uint16_t *__restrict M_ = kept.M, *__restrict r_ = kept.r;
    float *__restrict M_to = t.M, *__restrict r_to = t.r;
    float missing = 0;
#pragma omp simd reduction(+ : missing)
    for (int i = 0; i < n; ++i) {
        const float g = grad_[i], M = Brain::load(M_[i]), r = Brain::load(r_[i]), innovation = sign * g - M;
        const bool seen = std::fabs(g) <= limit;  // false for NaN too
        const float E = seen ? innovation : 0.0f, next = newer<LATE>(r, E * E * share, weight, rest);
        const uint16_t M_stored = round_up_or_down(M + gain * E, spread_[i], for_M);
        const uint16_t r_stored = round_up_or_down(seen ? next : r, spread_[i], for_r);
        M_[i] = M_stored;
        r_[i] = r_stored;
        M_to[i] = Brain::load(M_stored);
        r_to[i] = Brain::load(r_stored);
        missing += seen ? 0.0f : 1.0f;
    }
    return double(missing);
}

// Squares of the mean (or of its distance from the start), sum of s, sum of M^2 / s.
template <bool START, class T>
INLINE Sums learned_sums(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    const T eps = k.eps, sure = k.sure;
    const T *__restrict mean_ = t.mean, *__restrict M_ = t.M, *__restrict r_ = t.r, *__restrict start_ = t.start;
    T squares = 0, S = 0, A = 0;
#pragma omp simd reduction(+ : squares, S, A)
    for (int i = 0; i < n; ++i) {
        const T M = M_[i], s = noise_scale(r_[i], M, eps, sure), away = START ? mean_[i] - start_[i] : mean_[i];
        squares += away * away;
        S += s;
        A += M / s * M;
    }
    return {double(squares), double(S), double(A), 0};
}

// Both in one loop: roots and divisions of one entry go on while the next ones come from memory. One form for whole and for
// missing gradients, since masks cost less here than a look at the gradients beforehand.
template <bool START, bool LATE, class T>
INLINE Sums observe_loop(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    const T gain = k.gain, share = k.share, weight = k.weight, rest = k.rest, sign = k.sign, limit = k.limit;
    const T eps = k.eps, sure = k.sure;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad, *__restrict start_ = t.start;
    T *__restrict M_ = t.M, *__restrict r_ = t.r;
    T squares = 0, S = 0, A = 0, missing = 0;
#pragma omp simd reduction(+ : squares, S, A, missing)
    for (int i = 0; i < n; ++i) {
        const T g = grad_[i], M = M_[i], r = r_[i], innovation = sign * g - M;
        const bool seen = std::fabs(g) <= limit;  // false for NaN too
        const T E = seen ? innovation : T(0), next = newer<LATE>(r, E * E * share, weight, rest);
        const T new_M = M + gain * E, new_r = seen ? next : r, s = noise_scale(new_r, new_M, eps, sure);
        const T away = START ? mean_[i] - start_[i] : mean_[i];
        M_[i] = new_M;
        r_[i] = new_r;
        squares += away * away;
        S += s;
        A += new_M / s * new_M;
        missing += seen ? T(0) : T(1);
    }
    return {double(squares), double(S), double(A), double(missing)};
}

template <class T>
INLINE Sums observe_learned(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    if (k.late) return t.start ? observe_loop<true, true>(t, n, k) : observe_loop<false, true>(t, n, k);
    return t.start ? observe_loop<true, false>(t, n, k) : observe_loop<false, false>(t, n, k);
}

template <class T>
INLINE void move_learned(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    const T eps = k.eps, sure = k.sure, keep = k.keep, length = k.length;
    const T *__restrict M_ = t.M, *__restrict r_ = t.r;
    T* __restrict mean_ = t.mean;
#pragma omp simd
    for (int i = 0; i < n; ++i) mean_[i] = mean_[i] * keep - M_[i] / noise_scale(r_[i], M_[i], eps, sure) * length;
}

INLINE void move_rounded(const Kept& kept, float* mean, int n, const LearnedNumbers<float>& k) {
    const float eps = k.eps, sure = k.sure, keep = k.keep, length = k.length;
    const uint16_t *__restrict M_ = kept.M, *__restrict r_ = kept.r;
    float* __restrict mean_ = mean;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const float M = Brain::load(M_[i]), s = noise_scale(Brain::load(r_[i]), M, eps, sure);
        mean_[i] = mean_[i] * keep - M / s * length;
    }
}

}  // namespace
