// The elementwise passes over the tiles of a turned matrix; arturo/kernels/adaptive/native_tiles.py does the products between
// them. The matrix lies row by row, everything that is kept in the basis tile after tile.

#pragma once

#include <cmath>
#include <cstdint>

#include "adaptive.h"
#include "chunk.h"
#include "formulas.h"

namespace {

struct TileRange {  // some tiles of one matrix; packed by arturo/kernels/adaptive/native_tiles.py
    void *grad, *mean;            // of the whole matrix
    void *M, *r, *turned;         // of the first tile of this range
    uint8_t* seen;                // per tile: none of its gradients is missing
    double* mean_s;               // per tile
    int64_t first, count;         // tiles
    int64_t columns, height, width;  // tiles in a row of the matrix; entries of a tile
    double gain, share, weight, eps, sure, floor, freedom, sign, limit, keep, length;
};

template <class T>
struct Tile {
    T *mean, *M, *r, *turned;  // mean, grad: at its first entry; the next row is ``stride`` entries further
    const T* grad;
    int64_t height, width, stride;
};

// Gradients to ``turned``, zeros if one is missing. Returns the squares of the mean and the number of missing entries.
template <class T>
INLINE LearnedSums pack_tile(const Tile<T>& t, T limit, uint8_t& seen) {
    double squares = 0;
    bool all = true;
    for (int64_t i = 0; i < t.height; ++i) {
        const T *__restrict grad_ = t.grad + i * t.stride, *__restrict mean_ = t.mean + i * t.stride;
        T* __restrict turned_ = t.turned + i * t.width;
        for (int64_t begin = 0; begin < t.width; begin += CHUNK) {
            const int n = int(t.width - begin < CHUNK ? t.width - begin : CHUNK);
            T sum = 0;
            int unseen = 0;
#pragma omp simd reduction(+ : sum) reduction(| : unseen)
            for (int j = 0; j < n; ++j) {
                const T g = grad_[begin + j], m = mean_[begin + j];
                turned_[begin + j] = g;
                sum += m * m;
                unseen |= !(std::fabs(g) <= limit);
            }
            squares += double(sum);
            all = all && unseen == 0;
        }
    }
    seen = all;
    const int64_t size = t.height * t.width;
    if (!all)
        for (int64_t i = 0; i < size; ++i) t.turned[i] = 0;
    return {squares, 0, 0, 0, 0, all ? 0.0 : double(size)};
}

// Noise of a tile that was seen; the innovation replaces the turned gradient. Returns the sum of s without its floor.
template <bool LATE, class T>
INLINE double learn_tile(const Tile<T>& t, int64_t size, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += CHUNK) {
        const int n = int(size - begin < CHUNK ? size - begin : CHUNK);
        const T* __restrict M_ = t.M + begin;
        T *__restrict turned_ = t.turned + begin, *__restrict r_ = t.r + begin;
        T S = 0;
#pragma omp simd reduction(+ : S)
        for (int i = 0; i < n; ++i) {
            const T M = M_[i], E = k.sign * turned_[i] - M, r = newer<LATE>(r_[i], M, E, k);
            r_[i] = r;
            turned_[i] = E;
            S += noise_scale(r, k.eps);
        }
        sum += double(S);
    }
    return sum;
}

template <class T>
INLINE double sum_of_s(const Tile<T>& t, int64_t size, T eps) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += double(noise_scale(t.r[i], eps));
    return sum;
}

// Sums of s, which has the floor, and of M^2 / s, M E / s, E^2 / s.
template <class T>
INLINE LearnedSums tile_sums(const Tile<T>& t, int64_t size, T eps, T floor) {
    LearnedSums sums = {0, 0, 0, 0, 0, 0};
    for (int64_t begin = 0; begin < size; begin += CHUNK) {
        const int n = int(size - begin < CHUNK ? size - begin : CHUNK);
        const T *__restrict M_ = t.M + begin, *__restrict r_ = t.r + begin, *__restrict E_ = t.turned + begin;
        T S = 0, MM = 0, ME = 0, EE = 0;
#pragma omp simd reduction(+ : S, MM, ME, EE)
        for (int i = 0; i < n; ++i) {
            const T M = M_[i], E = E_[i], s = noise_scale(r_[i], eps) + floor, inverse = T(1) / s;
            S += s;
            MM += M * inverse * M;
            ME += M * inverse * E;
            EE += E * inverse * E;
        }
        sums.add({0, double(S), double(MM), double(ME), double(EE), 0});
    }
    return sums;
}

// M += gain E.
template <class T>
INLINE void filter_tile(const Tile<T>& t, int64_t size, T gain) {
    const T* __restrict E_ = t.turned;
    T* __restrict M_ = t.M;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) M_[i] += gain * E_[i];
}

// M / s to ``turned``.
template <class T>
INLINE void scale_tile(const Tile<T>& t, int64_t size, const LearnedNumbers<T>& k, T floor) {
    const T eps = k.eps;
    const T *__restrict M_ = t.M, *__restrict r_ = t.r;
    T* __restrict turned_ = t.turned;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) turned_[i] = M_[i] / (noise_scale(r_[i], eps) + floor);
}

template <class T>
INLINE void unpack_tile(const Tile<T>& t, T keep, T length) {
    for (int64_t i = 0; i < t.height; ++i) {
        const T* __restrict turned_ = t.turned + i * t.width;
        T* __restrict mean_ = t.mean + i * t.stride;
#pragma omp simd
        for (int64_t j = 0; j < t.width; ++j) mean_[j] = mean_[j] * keep - turned_[j] * length;
    }
}

enum TilePass { PACK, OBSERVE_TILE, SCALE, UNPACK };

template <class T>
INLINE LearnedSums tile_pass(TilePass pass, const TileRange& range, int64_t number) {
    const LearnedNumbers<T> k(range, range.keep, range.length, range.gain);
    const int64_t size = range.height * range.width, stride = range.columns * range.width, place = range.first + number;
    const int64_t at = place / range.columns * range.height * stride + place % range.columns * range.width;
    const int64_t here = number * size;
    T *const mean = static_cast<T*>(range.mean), *const turned = static_cast<T*>(range.turned);
    const Tile<T> t = {mean + at, static_cast<T*>(range.M) + here, static_cast<T*>(range.r) + here, turned + here,
                       static_cast<const T*>(range.grad) + at, range.height, range.width, stride};
    const T floor = T(range.floor * range.mean_s[number]);
    switch (pass) {
        case PACK:
            return pack_tile(t, k.limit, range.seen[number]);
        case OBSERVE_TILE: {
            const double sum = !range.seen[number] ? sum_of_s(t, size, k.eps)  // its innovation is 0
                               : k.late            ? learn_tile<true>(t, size, k)
                                                   : learn_tile<false>(t, size, k);
            range.mean_s[number] = sum / double(size);
            LearnedSums sums = tile_sums(t, size, k.eps, T(range.floor * range.mean_s[number]));
            const double surprise = sums.S > 0 ? range.share * sums.EE / sums.S : 0, freedom = range.freedom;
            const double trust = surprise > 1 ? (freedom + 1) / (freedom + surprise) : 1, gain = range.gain * trust;
            if (range.seen[number]) filter_tile(t, size, T(gain));
            sums.MM += gain * (2 * sums.ME + gain * sums.EE);
            sums.ME = sums.EE = 0;
            return sums;
        }
        case SCALE:
            scale_tile(t, size, k, floor);
            break;
        case UNPACK:
            unpack_tile(t, k.keep, k.length);
            break;
    }
    return {0, 0, 0, 0, 0, 0};
}

}  // namespace
