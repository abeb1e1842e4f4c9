// The formulas of arturo/surrogates/kalman.py and arturo/core/trust_region.py, line by line, as loops over a chunk, so that state
// gets the bits that the eager kernel gives it.
//
// The sums of a chunk whose gradients are all there are in the parameter's precision; where they leave a safe range they are
// taken again in double.

#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "chunk.h"

namespace {

// x = num / den and u = prec / den. One division does where the last bit does not count.
INLINE void divide(float num, float prec, float den, float& x, float& u) {
    const float inverse = 1.0f / den;
    x = num * inverse;
    u = prec * inverse;
}
INLINE void divide(double num, double prec, double den, double& x, double& u) {
    x = num / den;
    u = prec / den;
}

// The whole filter in one loop, with the sums S_0, S_1, S_2 in T: divisions of one entry go on while the next ones come from
// memory, and all arrays are read at one pace, which the processor prefetches best (two loops, or prefetching by hand: a fifth
// slower). ``outside`` counts the P_ab not clearly inside sqrt(P_aa P_bb): those may have to be pulled in.
template <bool FIRST, class T>
INLINE Sums filter_loop(const Chunk<T>& t, int n, const Numbers<T>& k, T& outside_) {
    const T q = k.q, r = k.r, q_2 = k.q_2, rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, floor = k.floor;
    const T limit = k.limit, factor = k.factor, a_0 = k.a_0, start_m = k.start_m;
    const T inner = T(1) - T(64) * std::numeric_limits<T>::epsilon();
    T s_0 = 0, s_1 = 0, s_2 = 0, missing = 0, outside = 0;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad, *__restrict prec_ = t.prec;
    T *__restrict aa_ = t.P_1, *__restrict ab_ = t.P_2, *__restrict bb_ = t.P_3, *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0, s_1, s_2, missing, outside)
    for (int i = 0; i < n; ++i) {
        const T raw = grad_[i], m = mean_[i] * decay;
        const bool seen = std::fabs(raw) <= limit;  // false for NaN too
        T aa = aa_[i], ab = ab_[i], bb = bb_[i], a = a_[i], b = b_[i];
        const T det_old = aa * bb - ab * ab;
        const T det = (det_old > 0 ? det_old : T(0)) + q * (aa + bb) + q_2;
        aa += q;
        bb += q;
        const T h = ab + m * aa, m_det = m * det, r_aa = r * aa;
        const T inverse_v = aa / (r_aa + (h * h + det));
        const T K_a = h * inverse_v, K_b = (bb + m * ab) * inverse_v;
        const T new_aa = seen ? (r_aa + det) * inverse_v : aa;
        const T new_ab = seen ? (r * ab - m_det) * inverse_v : ab;
        const T new_bb = seen ? (r * bb + m * m_det) * inverse_v : bb;
        outside += new_ab * new_ab < new_aa * new_bb * inner ? T(0) : T(1);
        aa_[i] = new_aa;
        ab_[i] = new_ab;
        bb_[i] = new_bb;
        const T g = seen ? factor * raw : T(0);
        if (FIRST) b = g + (seen ? start_m : -a_0) * m;
        const T error = seen ? g - (a * m + b) : T(0);
        a = a + K_a * error;
        b = b + K_b * error;
        a_[i] = a;
        b_[i] = b;
        missing += seen ? T(0) : T(1);
        const T prec = prec_[i];
        const T num = (a * m + b) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        T x, u;
        divide(num, prec, s_w * A + eta_w * prec, x, u);
        const T term = x * x * prec, term_u = term * u;
        s_0 += term;
        s_1 += term_u;
        s_2 += term_u * u;
    }
    outside_ = outside;
    return {double(s_0), double(s_1), double(s_2), double(missing)};
}

// S_0, S_1, S_2 in T, the type W = double for numbers whose squares leave float's range.
template <class W, class T>
INLINE Sums sum_loop(const Chunk<T>& t, int n, const Numbers<T>& k) {
    const T rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, floor = k.floor;
    W s_0 = 0, s_1 = 0, s_2 = 0;
    const T *__restrict mean_ = t.mean, *__restrict prec_ = t.prec, *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0, s_1, s_2)
    for (int i = 0; i < n; ++i) {
        const T m = mean_[i] * decay, a = a_[i], prec = prec_[i];
        const T num = (a * m + b_[i]) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        T x, u;
        divide(num, prec, s_w * A + eta_w * prec, x, u);
        const W term = W(x) * W(x) * W(prec), term_u = term * W(u);
        s_0 += term;
        s_1 += term_u;
        s_2 += term_u * W(u);
    }
    return {double(s_0), double(s_1), double(s_2), 0};
}

template <class T>
INLINE bool safe(double sum) {  // no term that counts was lost below float's range, none left it above
    return std::is_same<T, double>::value || (sum > 1e-25 && sum < 1e30);
}

template <class T>
INLINE bool safe(const Sums& sums) {
    return safe<T>(sums.s_0) && safe<T>(sums.s_1) && safe<T>(sums.s_2);
}

template <class T>
INLINE void hold_inside(const Chunk<T>& t, int n) {  // P_ab, so that P as stored is positive definite
    const T inner = T(1) - T(8) * std::numeric_limits<T>::epsilon();
    const T *__restrict aa_ = t.P_1, *__restrict bb_ = t.P_3;
    T* __restrict ab_ = t.P_2;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const T inside = std::sqrt(aa_[i]) * std::sqrt(bb_[i]) * inner;
        const T ab = ab_[i] > -inside ? ab_[i] : -inside;
        ab_[i] = ab < inside ? ab : inside;
    }
}

template <class T>
INLINE Sums probe_chunk(const Chunk<T>& t, int n, const Numbers<T>& k) {
    const Sums sums = sum_loop<T>(t, n, k);
    return safe<T>(sums) ? sums : sum_loop<double>(t, n, k);
}

template <class T>
INLINE Sums observe_chunk(const Chunk<T>& t, int n, bool first, const Numbers<T>& k) {
    T outside;
    const Sums sums = first ? filter_loop<true>(t, n, k, outside) : filter_loop<false>(t, n, k, outside);
    if (outside != 0) hold_inside(t, n);  // rare
    if (!first && sums.missing == 0 && safe<T>(sums)) return sums;
    Sums again = sum_loop<double>(t, n, k);
    again.missing = sums.missing;
    return again;
}

// S_0 of a move: sum of x^2 prec.
template <class T>
INLINE double weighted_squares(const T* x, const T* prec, int n) {
    const T *__restrict x_ = x, *__restrict prec_ = prec;
    T s_0 = 0;
#pragma omp simd reduction(+ : s_0)
    for (int i = 0; i < n; ++i) s_0 += x_[i] * x_[i] * prec_[i];
    double sum = s_0;
    if (!safe<T>(sum)) {
        sum = 0;
        for (int i = 0; i < n; ++i) sum += double(x_[i]) * double(x_[i]) * double(prec_[i]);
    }
    return sum;
}

template <class T>
INLINE Sums move_chunk(const Chunk<T>& t, int n, const Numbers<T>& k) {
    const T rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, floor = k.floor;
    const T nu = k.nu, inverse_total = k.inverse_total, length = k.length;
    T x_[CHUNK], old_[CHUNK];
    T *__restrict mean_ = t.mean, *__restrict prec_ = t.prec;
    const T *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
        const T m = mean_[i] * decay, a = a_[i], prec = prec_[i];
        const T num = (a * m + b_[i]) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        const T x = num / (s_w * A + eta_w * prec);
        mean_[i] = m - length * x;
        prec_[i] = (A + nu * prec) * inverse_total;
        x_[i] = x;
        old_[i] = prec;
    }
    return {weighted_squares(x_, old_, n), 0, 0, 0};
}

}  // namespace
