// AdaArturo's passes: arturo/surrogates/learned.py as loops over a chunk, for tensors whose Gaussian is diagonal in the weights
// themselves. tiles.h has those for tensors that are turned.
//
// observe: r += w (share E^2 - r) with E = g - M, and sums, from which follows how far E is trusted; move: M += gain E,
// mean = keep mean - length M / s. s is never stored: a root costs less than four bytes of traffic. 44 bytes per weight. Nothing
// is prefetched by hand: the loops wait for memory, and the processor's own prefetching does better.

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
    LearnedNumbers(const Step& t, double keep_, double length_, double gain_)
        : gain(gain_), share(t.share), weight(t.weight), rest(T(1) - T(t.weight)), eps(t.eps), sure(t.sure), sign(t.sign),
          limit(t.limit), keep(keep_), length(length_), late(T(t.weight) >= T(0.5)) {}
};

template <class T>
struct LearnedChunk {
    T* mean;
    const T* grad;
    T *M, *r;
    const T* start;
};

// Sums of a row: squares of the mean (or of its distance from the start), of s, M^2 / s, M E / s, E^2 / s; missing entries.
struct LearnedSums {
    double squares, S, MM, ME, EE, missing;
    void add(const LearnedSums& other) {
        squares += other.squares;
        S += other.S;
        MM += other.MM;
        ME += other.ME;
        EE += other.EE;
        missing += other.missing;
    }
};

template <class T>
INLINE T noise_scale(T r, T eps) {
    const T s = std::sqrt(r) + eps;
    return s > std::numeric_limits<T>::min() ? s : std::numeric_limits<T>::min();
}

// r after an innovation E that was seen.
template <bool LATE, class T>
INLINE T newer(T r, T M, T E, const LearnedNumbers<T>& k) {
    const T variance = E * E * k.share, sure = k.sure * (M + k.gain * E), least = sure * sure;
    const T next = LATE ? variance - (variance - r) * k.rest : r + k.weight * (variance - r);
    return next > least ? next : least;
}

// Noise and sums. With STORE r is written; without it r is up to date, and the sums are all there is to do.
template <bool START, bool LATE, bool STORE, class T>
INLINE LearnedSums observe_loop(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad, *__restrict start_ = t.start, *__restrict M_ = t.M;
    T* __restrict r_ = t.r;
    T squares = 0, S = 0, MM = 0, ME = 0, EE = 0, missing = 0;
#pragma omp simd reduction(+ : squares, S, MM, ME, EE, missing)
    for (int i = 0; i < n; ++i) {
        const T g = grad_[i], M = M_[i], r = r_[i], innovation = k.sign * g - M;
        const bool seen = std::fabs(g) <= k.limit;  // false for NaN too
        const T E = seen ? innovation : T(0), next = STORE ? newer<LATE>(r, M, E, k) : r, new_r = seen ? next : r;
        const T inverse = T(1) / noise_scale(new_r, k.eps), away = START ? mean_[i] - start_[i] : mean_[i];
        if (STORE) r_[i] = new_r;
        squares += away * away;
        S += noise_scale(new_r, k.eps);
        MM += M * inverse * M;
        ME += M * inverse * E;
        EE += E * inverse * E;
        missing += seen ? T(0) : T(1);
    }
    return {double(squares), double(S), double(MM), double(ME), double(EE), double(missing)};
}

template <bool STORE, class T>
INLINE LearnedSums observe_learned(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    if (k.late) return t.start ? observe_loop<true, true, STORE>(t, n, k) : observe_loop<false, true, STORE>(t, n, k);
    return t.start ? observe_loop<true, false, STORE>(t, n, k) : observe_loop<false, false, STORE>(t, n, k);
}

// The noise alone, where it is rounded before the sums are taken.
template <class T>
INLINE void noise_loop(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    for (int i = 0; i < n; ++i) {
        const T g = t.grad[i], M = t.M[i], r = t.r[i], E = k.sign * g - M;
        t.r[i] = std::fabs(g) <= k.limit ? (k.late ? newer<true>(r, M, E, k) : newer<false>(r, M, E, k)) : r;
    }
}

template <class T>
INLINE void move_learned(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    const T *__restrict grad_ = t.grad, *__restrict r_ = t.r;
    T *__restrict mean_ = t.mean, *__restrict M_ = t.M;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const T g = grad_[i], M = M_[i], innovation = k.sign * g - M;
        const T E = std::fabs(g) <= k.limit ? innovation : T(0), new_M = M + k.gain * E;
        M_[i] = new_M;
        mean_[i] = mean_[i] * k.keep - new_M / noise_scale(r_[i], k.eps) * k.length;
    }
}

}  // namespace
