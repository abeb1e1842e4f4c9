// What the passes are about: a chunk of one parameter, the constants of a step, the sums of a pass.

#pragma once

#include <cstdint>
#include <limits>

#ifdef _MSC_VER
#define INLINE_MEMBER __forceinline
#else
#define INLINE_MEMBER inline __attribute__((always_inline))
#endif
#define INLINE static INLINE_MEMBER

namespace {

constexpr int CHUNK = 256;  // entries; few enough to stay in the first cache between a chunk's loops

struct Constants {  // the numbers of Constants in kernels/batch.py in their order, then native.py's own
    double q, r, rho, rho_lam, nu, floor, a_0, factor, decay, s_w, eta_w, scale, limit;
    int64_t has_floor, consistent;
};

struct Sums {
    double s_0, s_1, s_2, missing;
    void add(const Sums& other) {
        s_0 += other.s_0;
        s_1 += other.s_1;
        s_2 += other.s_2;
        missing += other.missing;
    }
};

template <class T>
struct Chunk {
    T* mean;
    const T* grad;
    T *prec, *a, *b, *P_1, *P_2, *P_3;  // P_aa, P_ab, P_bb; of bfloat16 state P_aa, P_slope, P_rest
};

template <class T>
struct Numbers {  // the constants as the loops want them
    T q, r, q_2, rho_lam, decay, s_w, eta_w, floor, limit, factor, a_0, start_m, nu, inverse_total, length;
    explicit Numbers(const Constants& k)
        : q(k.q), r(k.r), q_2(k.q * k.q), rho_lam(k.rho_lam), decay(k.decay), s_w(k.s_w), eta_w(k.eta_w),
          floor(k.has_floor ? T(k.floor) : -std::numeric_limits<T>::infinity()), limit(k.limit), factor(k.factor),
          a_0(k.a_0), start_m(k.consistent ? -T(k.a_0) : T(0)), nu(k.nu), inverse_total(1 / (k.rho + k.nu)),
          length(k.scale * k.s_w) {}
};

}  // namespace
