// The formulas of arturo/surrogates/kalman.py and arturo/core/trust_region.py, line by line, as loops over a chunk, so that state
// gets the bits that the eager kernel gives it.
//
// A chunk whose gradients are all there takes a loop without masks, whose sums are in the parameter's precision; where they
// leave a safe range they are taken again in double.

#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "chunk.h"

namespace {

template <class T>
INLINE bool all_seen(const T* grad, int n, T limit) {
    int unseen = 0;
    const T* __restrict grad_ = grad;
#pragma omp simd reduction(| : unseen)
    for (int i = 0; i < n; ++i) unseen |= !(std::fabs(grad_[i]) <= limit);  // true for NaN too
    return unseen == 0;
}

// The filter's variance and gains. ALL: every gradient is there. Returns the number of P_ab not clearly inside
// sqrt(P_aa P_bb): those may have to be pulled in.
template <bool ALL, class T>
INLINE T variance_loop(const Chunk<T>& t, int n, const Numbers<T>& k, T* K_a, T* K_b) {
    const T q = k.q, r = k.r, q_2 = k.q_2, decay = k.decay, limit = k.limit;
    const T inner = T(1) - T(64) * std::numeric_limits<T>::epsilon();
    T outside = 0;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad;
    T *__restrict aa_ = t.P_1, *__restrict ab_ = t.P_2, *__restrict bb_ = t.P_3, *__restrict K_a_ = K_a, *__restrict K_b_ = K_b;
#pragma omp simd reduction(+ : outside)
    for (int i = 0; i < n; ++i) {
        const T m = mean_[i] * decay;
        T aa = aa_[i], ab = ab_[i], bb = bb_[i];
        const T det_old = aa * bb - ab * ab;
        const T det = (det_old > 0 ? det_old : T(0)) + q * (aa + bb) + q_2;
        aa += q;
        bb += q;
        const T h = ab + m * aa, m_det = m * det, r_aa = r * aa;
        const T inverse_v = aa / (r_aa + (h * h + det));
        K_a_[i] = h * inverse_v;
        K_b_[i] = (bb + m * ab) * inverse_v;
        const bool seen = ALL || std::fabs(grad_[i]) <= limit;
        const T new_aa = seen ? (r_aa + det) * inverse_v : aa;
        const T new_ab = seen ? (r * ab - m_det) * inverse_v : ab;
        const T new_bb = seen ? (r * bb + m * m_det) * inverse_v : bb;
        outside += new_ab * new_ab < new_aa * new_bb * inner ? T(0) : T(1);
        aa_[i] = new_aa;
        ab_[i] = new_ab;
        bb_[i] = new_bb;
    }
    return outside;
}

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

// The filter's a and b; with SUM, for which ALL gradients must be there, also S_0, S_1, S_2 in T.
template <bool ALL, bool SUM, class T>
INLINE Sums model_loop(const Chunk<T>& t, int n, bool first, const Numbers<T>& k, const T* K_a, const T* K_b) {
    const T rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, floor = k.floor, limit = k.limit;
    const T factor = k.factor, a_0 = k.a_0, start_m = k.start_m;
    T s_0 = 0, s_1 = 0, s_2 = 0, missing = 0;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad, *__restrict K_a_ = K_a, *__restrict K_b_ = K_b;
    const T* __restrict prec_ = t.prec;
    T *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0, s_1, s_2, missing)
    for (int i = 0; i < n; ++i) {
        const T raw = grad_[i], m = mean_[i] * decay;
        const bool seen = ALL || std::fabs(raw) <= limit;
        const T g = seen ? factor * raw : T(0);
        T a = a_[i], b = b_[i];
        if (!ALL) b = first ? g + (seen ? start_m : -a_0) * m : b;
        const T error = seen ? g - (a * m + b) : T(0);
        a = a + K_a_[i] * error;
        b = b + K_b_[i] * error;
        a_[i] = a;
        b_[i] = b;
        if (!ALL) missing += seen ? T(0) : T(1);
        if (SUM) {
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
    }
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
    T K_a[CHUNK], K_b[CHUNK];
    fetch_next(t.P_1, t.P_2);
    const bool all = !first && all_seen(t.grad, n, k.limit);
    fetch_next(t.P_3, t.mean);
    const T outside = all ? variance_loop<true>(t, n, k, K_a, K_b) : variance_loop<false>(t, n, k, K_a, K_b);
    if (outside != 0) hold_inside(t, n);  // rare
    fetch_next(t.a, t.b, t.prec, t.grad);
    if (all) {
        const Sums sums = model_loop<true, true>(t, n, first, k, K_a, K_b);
        return safe<T>(sums) ? sums : sum_loop<double>(t, n, k);
    }
    const double missing = model_loop<false, false>(t, n, first, k, K_a, K_b).missing;
    Sums sums = sum_loop<double>(t, n, k);
    sums.missing = missing;
    return sums;
}

template <class T>
INLINE Sums move_chunk(const Chunk<T>& t, int n, const Numbers<T>& k) {
    const T rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, floor = k.floor;
    const T nu = k.nu, inverse_total = k.inverse_total, length = k.length;
    T s_0 = 0, x_[CHUNK];
    T *__restrict mean_ = t.mean, *__restrict prec_ = t.prec;
    const T *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0)
    for (int i = 0; i < n; ++i) {
        const T m = mean_[i] * decay, a = a_[i], prec = prec_[i];
        const T num = (a * m + b_[i]) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        const T x = num / (s_w * A + eta_w * prec);
        mean_[i] = m - length * x;
        x_[i] = x;
        s_0 += x * x * prec;
    }
    double sum = s_0;
    if (!safe<T>(sum)) {
        sum = 0;
        for (int i = 0; i < n; ++i) sum += double(x_[i]) * double(x_[i]) * double(prec_[i]);
    }
#pragma omp simd
    for (int i = 0; i < n; ++i) prec_[i] = (((a_[i] > floor ? a_[i] : floor) + rho_lam) + nu * prec_[i]) * inverse_total;
    return {sum, 0, 0, 0};
}

}  // namespace
