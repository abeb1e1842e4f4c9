// AdaArturo's passes: arturo/surrogates/learned.py as loops over a chunk, for tensors whose Gaussian is diagonal in the weights
// themselves. tiles.h has those for tensors that are turned.
//
// observe: r += w (share E^2 - r) with E = g - M, and sums, from which follows how far E is trusted; M += gain E as if that were
// in full. move: where it is not, the gradient is read again and M corrected; the mean moves by M / s, and the squares of the new
// mean follow, which the next observe then need not read. s is never stored: a root costs less than four bytes of traffic. 36
// bytes per weight, 44 where M is corrected. Nothing is prefetched by hand: the loops wait for memory, and the processor's own
// prefetching does better.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "chunk.h"
#include "formulas.h"
#include "half.h"
#include "portable.h"
#include "rounded.h"

#ifdef TARGETS
#include <immintrin.h>
#endif

namespace {

struct Size {  // of a mean after a move
    double squares;
    uint64_t sample;  // sample_of its entries: has somebody changed it since?
};

struct LearnedTensor {  // packed by arturo/kernels/adaptive/native.py: what stays from step to step, then what does not
    void *param, *mean, *M, *r, *start;  // start: where a vector began; null for a matrix
    Size* known;                         // null: not kept
    int64_t size;
    void* grad;
    int64_t index, seed;  // index: of the first entry in the whole parameter; seed: of its rounding bits
    double gain, share, weight, eps, sure, sign, limit;
};

// The part of E that observe adds to M: all that full trust would add, unless E = (g - M) / (1 - gain) is then hard to tell. With
// the new M, what is left for move is (trusted gain - gain) / (1 - gain) of g - M, nothing if E is trusted in full.
inline double anticipated(double gain) { return gain <= 0.5 ? gain : 0; }

template <class T>
struct LearnedNumbers {
    T gain, share, weight, rest, eps, sure, sign, limit, keep, pull, length;
    T filter;   // the part of g - M that is added to M
    bool late;  // the newest counts most: interpolate from there, as torch.lerp does
    template <class Step>  // a LearnedTensor, or another record with these fields
    LearnedNumbers(const Step& t, double keep_, double pull_, double length_, double filter_)
        : gain(t.gain), share(t.share), weight(t.weight), rest(T(1) - T(t.weight)), eps(t.eps), sure(t.sure), sign(t.sign),
          limit(t.limit), keep(keep_), pull(pull_), length(length_), filter(filter_), late(T(t.weight) >= T(0.5)) {}
};

template <class T>
struct LearnedChunk {
    T* mean;
    const T* grad;
    T *M, *r;
    const T* start;
};

// Sums of a row: squares of the mean (or of its distance from the start), of s, M^2 / s, M E / s, E^2 / s; missing entries; of a
// turned matrix M^2 / s after the filter.
struct LearnedSums {
    double squares, S, MM, ME, EE, missing, pull;
    void add(const LearnedSums& other) {
        squares += other.squares;
        S += other.S;
        MM += other.MM;
        ME += other.ME;
        EE += other.EE;
        missing += other.missing;
        pull += other.pull;
    }
};

struct Kept {  // a chunk of bfloat16 state as stored
    uint16_t *M, *r;
    const uint16_t* spread;  // SPREAD from the first entry on
    uint32_t key;            // of the rounding bits
};

// least_scale of arturo/surrogates/learned.py: the root of the smallest normal number.
template <class T>
constexpr T LEAST_SCALE = std::is_same<T, float>::value ? T(0x1p-63) : T(0x1p-511);

template <class T>
INLINE T noise_scale(T r, T eps) {
    const T s = std::sqrt(r) + eps;
    return s > LEAST_SCALE<T> ? s : LEAST_SCALE<T>;
}

// r after an innovation E that was seen; M: after it, trusted in full.
template <bool LATE, class T>
INLINE T newer(T r, T M, T E, const LearnedNumbers<T>& k) {
    const T variance = E * E * k.share, sure = k.sure * M, least = sure * sure;
    const T next = LATE ? variance - (variance - r) * k.rest : r + k.weight * (variance - r);
    return next > least ? next : least;
}

// What one entry of type T adds to the sums.
#define ADD_UP(T, NEW_R, M, E, SEEN)                                  \
    const T s = noise_scale<T>(NEW_R, k.eps);                         \
    const T inverse = T(1) / s, by_M = M * inverse;                   \
    S += s;                                                           \
    MM += by_M * M;                                                   \
    ME += by_M * E;                                                   \
    EE += E * inverse * E;                                            \
    missing += !SEEN

// Noise and sums in one loop: roots and divisions of one entry go on while the next ones come from memory. One form for whole
// and for missing gradients, since masks cost less here than a look at the gradients beforehand.
template <bool LATE, bool ANTICIPATE, class T>
INLINE LearnedSums observe_loop(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    const T* __restrict grad_ = t.grad;
    T *__restrict M_ = t.M, *__restrict r_ = t.r;
    T S = 0, MM = 0, ME = 0, EE = 0;
    int missing = 0;
#pragma omp simd reduction(+ : S, MM, ME, EE, missing)
    for (int i = 0; i < n; ++i) {
        const T g = grad_[i], M = M_[i], r = r_[i], innovation = k.sign * g - M;
        const bool seen = std::fabs(g) <= k.limit;  // false for NaN too
        const T E = seen ? innovation : T(0), new_M = M + k.gain * E, next = newer<LATE>(r, new_M, E, k), new_r = seen ? next : r;
        r_[i] = new_r;
        if (ANTICIPATE) M_[i] = new_M;
        ADD_UP(T, new_r, M, E, seen);
    }
    return {0, double(S), double(MM), double(ME), double(EE), double(missing), 0};
}

template <class T>
INLINE LearnedSums observe_learned(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    if (k.filter == 0) return k.late ? observe_loop<true, false>(t, n, k) : observe_loop<false, false>(t, n, k);
    return k.late ? observe_loop<true, true>(t, n, k) : observe_loop<false, true>(t, n, k);
}

// The same for bfloat16 state: the step follows the noise as it is stored.
template <bool LATE>
INLINE LearnedSums rounded_loop(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& numbers) {
    const LearnedNumbers<float> k = numbers;
    const Draws for_r = draws(kept.key, 1);
    const float* __restrict grad_ = t.grad;
    const uint16_t *__restrict spread_ = kept.spread, *__restrict M_ = kept.M;
    uint16_t* __restrict r_ = kept.r;
    float S = 0, MM = 0, ME = 0, EE = 0;
    int missing = 0;
#pragma omp simd reduction(+ : S, MM, ME, EE, missing)
    for (int i = 0; i < n; ++i) {
        const float g = grad_[i], M = Brain::load(M_[i]), r = Brain::load(r_[i]), innovation = k.sign * g - M;
        const bool seen = std::fabs(g) <= k.limit;  // false for NaN too
        const float E = seen ? innovation : 0.0f, next = newer<LATE>(r, M + k.gain * E, E, k);
        const uint16_t stored = round_up_or_down(seen ? next : r, spread_[i], for_r);
        r_[i] = stored;
        ADD_UP(float, Brain::load(stored), M, E, seen);
    }
    return {0, double(S), double(MM), double(ME), double(EE), double(missing), 0};
}

INLINE LearnedSums observe_rounded(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    return k.late ? rounded_loop<true>(kept, t, n, k) : rounded_loop<false>(kept, t, n, k);
}
#undef ADD_UP

// Squares of the mean, or of its distance from the start. Both passes call this, with the same chunks: the same bits.
template <class T>
INLINE double squares_of(const LearnedChunk<T>& t, int n) {
    const T *__restrict mean_ = t.mean, *__restrict start_ = t.start;
    T sum = 0;
    if (start_) {
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; ++i) sum += (mean_[i] - start_[i]) * (mean_[i] - start_[i]);
    } else {
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; ++i) sum += mean_[i] * mean_[i];
    }
    return double(sum);
}

// A number that changes with any of 64 entries, spread over all of them.
template <class T>
uint64_t sample_of(const T* mean, int64_t size) {
    const int64_t stride = size / 64 + 1;
    uint64_t sample = 0;
    for (int64_t i = 0; i < size; i += stride) {
        uint64_t bits = 0;
        std::memcpy(&bits, mean + i, sizeof(T));
        sample = (sample ^ bits) * 0x9E3779B97F4A7C15u;
    }
    return sample;
}

// The anchor pulls what is ``away`` from its start; not where the step is 0: what no gradient has reached stays.
template <class T>
INLINE T moved(T mean, T away, T step, T keep, T pull, T length) {
    return (step != T(0) ? mean - pull * away : mean) * keep - step * length;
}

template <bool FILTER, bool START, class T>
INLINE void move_loop(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    const T *__restrict grad_ = t.grad, *__restrict r_ = t.r, *__restrict start_ = t.start;
    T *__restrict mean_ = t.mean, *__restrict M_ = t.M;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        T M = M_[i];
        if (FILTER) {
            const T g = grad_[i], innovation = k.sign * g - M;
            M_[i] = M = M + k.filter * (std::fabs(g) <= k.limit ? innovation : T(0));
        }
        const T mean = mean_[i], step = M / noise_scale(r_[i], k.eps);
        mean_[i] = moved(mean, START ? mean - start_[i] : mean, step, k.keep, k.pull, k.length);
    }
}

#ifdef TARGETS
// The same with AVX-512 where eps is of no account: 1 / sqrt(r) is an estimate to 14 bits and one of Newton's steps, exact to the
// last bit or two. The loop waits for the unit that makes roots and divisions: a quarter off its time.
inline bool takes_v4(float eps) {
    static const bool level = processor_level() >= 4;
    return level && eps < 0x1p-25f * LEAST_SCALE<float>;
}

template <bool FILTER, bool START>
TARGET_V4 inline void move_v4(const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    const __m512 zero = _mm512_set1_ps(0), half = _mm512_set1_ps(0.5f), more = _mm512_set1_ps(1.5f);
    const __m512 least = _mm512_set1_ps(LEAST_SCALE<float> * LEAST_SCALE<float>), sign = _mm512_set1_ps(k.sign);
    const __m512 limit = _mm512_set1_ps(k.limit), filter = _mm512_set1_ps(k.filter), keep = _mm512_set1_ps(k.keep);
    const __m512 pull = _mm512_set1_ps(k.pull), length = _mm512_set1_ps(k.length);
    for (int i = 0; i < n; i += 16) {
        const __mmask16 there = __mmask16(n - i < 16 ? (1 << (n - i)) - 1 : 0xFFFF);
        __m512 M = _mm512_maskz_loadu_ps(there, t.M + i);
        if (FILTER) {
            const __m512 g = _mm512_maskz_loadu_ps(there, t.grad + i);
            const __mmask16 seen = _mm512_cmp_ps_mask(_mm512_abs_ps(g), limit, _CMP_LE_OQ);  // false for NaN too
            M += filter * _mm512_maskz_mov_ps(seen, sign * g - M);
            _mm512_mask_storeu_ps(t.M + i, there, M);
        }
        const __m512 r = _mm512_maskz_loadu_ps(there, t.r + i), mean = _mm512_maskz_loadu_ps(there, t.mean + i);
        const __m512 x = r > least ? r : least, y = _mm512_maskz_rsqrt14_ps(0xFFFF, x);
        const __m512 step = M * (y * (more - half * x * y * y));
        const __m512 away = START ? mean - _mm512_maskz_loadu_ps(there, t.start + i) : mean;
        _mm512_mask_storeu_ps(t.mean + i, there, (step != zero ? mean - pull * away : mean) * keep - step * length);
    }
}

template <bool FILTER, bool START>
INLINE void move_fast(const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    takes_v4(k.eps) ? move_v4<FILTER, START>(t, n, k) : move_loop<FILTER, START>(t, n, k);
}
#else
template <bool FILTER, bool START>
INLINE void move_fast(const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    move_loop<FILTER, START>(t, n, k);
}
#endif

template <bool FILTER, bool START>
INLINE void move_fast(const LearnedChunk<double>& t, int n, const LearnedNumbers<double>& k) {
    move_loop<FILTER, START>(t, n, k);
}

template <class T>
INLINE void move_learned(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {
    if (t.start)
        k.filter == 0 ? move_fast<false, true>(t, n, k) : move_fast<true, true>(t, n, k);
    else
        k.filter == 0 ? move_fast<false, false>(t, n, k) : move_fast<true, false>(t, n, k);
}

template <bool START>
INLINE void move_rounded_loop(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& numbers) {
    const LearnedNumbers<float> k = numbers;
    const Draws for_M = draws(kept.key, 0);
    const float *__restrict grad_ = t.grad, *__restrict start_ = t.start;
    const uint16_t *__restrict spread_ = kept.spread, *__restrict r_ = kept.r;
    uint16_t* __restrict M_ = kept.M;
    float* __restrict mean_ = t.mean;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const float g = grad_[i], M = Brain::load(M_[i]), innovation = k.sign * g - M;
        const float E = std::fabs(g) <= k.limit ? innovation : 0.0f, new_M = M + k.filter * E;
        M_[i] = round_up_or_down(new_M, spread_[i], for_M);
        const float mean = mean_[i], step = new_M / noise_scale(Brain::load(r_[i]), k.eps);
        mean_[i] = moved(mean, START ? mean - start_[i] : mean, step, k.keep, k.pull, k.length);
    }
}

INLINE void move_rounded(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    t.start ? move_rounded_loop<true>(kept, t, n, k) : move_rounded_loop<false>(kept, t, n, k);
}

}  // namespace
