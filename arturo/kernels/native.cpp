// The passes over memory on the CPU: one call per pass for a whole list of tensors, raw pointers, no torch headers.
//
// The formulas are those of arturo/surrogates/kalman.py and arturo/trust_region.py, line by line, so that state gets the
// bits that the eager kernel gives it. Compiled without -ffast-math, which would drop the finiteness test, and without
// contraction to fused multiply-adds, which would make the predicted gradient after b = g - a m differ from g.
//
// A block is worked on in chunks that stay in the first cache. A chunk whose gradients are all there takes a loop without
// masks, whose sums are in the parameter's precision; where they leave a safe range they are taken again in double.
// Blocks have a fixed size and are added in order: the same bits for any number of threads.

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#ifdef _MSC_VER
#define INLINE_MEMBER __forceinline
#else
#define INLINE_MEMBER inline __attribute__((always_inline))
#endif
#define INLINE static INLINE_MEMBER

namespace {

constexpr int CHUNK = 256;                // entries; few enough to stay in the first cache between a chunk's loops
constexpr int64_t BLOCK = 16 * CHUNK;     // what a thread takes at a time
constexpr int64_t ROUND = 8192;           // blocks between two additions of their sums: 256 KiB, whatever the model's size
constexpr int FIELDS = 9;

struct Constants {  // mirrored in native.py
    double q, r, rho, rho_lam, nu, floor, a_0, decay, s_w, eta_w, scale, limit;
    int64_t has_floor, consistent, maximize;
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

template <class To, class From>
INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// ---- half precision, as stored in 16 bits

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

// ---- a chunk of one parameter, in float or double

template <class T>
struct Chunk {
    T* mean;
    const T* grad;
    T *prec, *a, *b, *P_1, *P_2, *P_3;  // P_aa, P_ab, P_bb; of bfloat16 state P_aa, P_slope, P_rest
};

template <class T>
struct Numbers {  // the constants as the loops want them
    T q, r, q_2, rho_lam, decay, s_w, eta_w, floor, limit, sign, a_0, start_m, nu, inverse_total, length;
    explicit Numbers(const Constants& k)
        : q(k.q), r(k.r), q_2(k.q * k.q), rho_lam(k.rho_lam), decay(k.decay), s_w(k.s_w), eta_w(k.eta_w),
          floor(k.has_floor ? T(k.floor) : -std::numeric_limits<T>::infinity()), limit(k.limit), sign(k.maximize ? -1 : 1),
          a_0(k.a_0), start_m(k.consistent ? -T(k.a_0) : T(0)), nu(k.nu), inverse_total(1 / (k.rho + k.nu)),
          length(k.scale * k.s_w) {}
};

// Begin to fetch the next chunk of these arrays while this one is worked on: a line in eight, from which the processor's own
// prefetching goes on. Every line takes longer than none at all. Beyond an array's end nothing happens.
template <class... Arrays>
INLINE void fetch_next(const Arrays*... arrays) {
#if defined(__GNUC__)
    const auto fetch = [](const void* from, int bytes) {
        for (int i = 0; i < bytes; i += 512) __builtin_prefetch(static_cast<const char*>(from) + bytes + i);
    };
    (fetch(arrays, CHUNK * int(sizeof *arrays)), ...);
#endif
}

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

// The same of the factor P_aa, P_slope, P_rest.
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
    const T sign = k.sign, a_0 = k.a_0, start_m = k.start_m;
    T s_0 = 0, s_1 = 0, s_2 = 0, missing = 0;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad, *__restrict K_a_ = K_a, *__restrict K_b_ = K_b;
    const T* __restrict prec_ = t.prec;
    T *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0, s_1, s_2, missing)
    for (int i = 0; i < n; ++i) {
        const T raw = grad_[i], m = mean_[i] * decay;
        const bool seen = ALL || std::fabs(raw) <= limit;
        const T g = seen ? sign * raw : T(0);
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

// ---- state in bfloat16: a chunk of it is widened into buffers, worked on as above, and rounded back

// The bits of stochastic rounding; arturo/kernels/rounding.py has the same in tensor operations.
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

template <class H>
INLINE void widen_chunk(const uint16_t* from, float* to, int n) {
    const uint16_t* __restrict from_ = from;
    float* __restrict to_ = to;
#pragma omp simd
    for (int i = 0; i < n; ++i) to_[i] = H::load(from_[i]);
}

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

// ---- half-precision parameters: a chunk's gradient is widened, its mean follows the parameter, the parameter the mean

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

// ---- a block of one parameter, in chunks

struct Block {
    void* const* pointers;  // param, grad, mean, prec, a, b, P_1, P_2, P_3
    int64_t offset, size;
    bool first;
    uint32_t seed;  // of (step, index of the parameter)
    int64_t index;  // of the tensor's first entry in the whole parameter: a shard knows where it lies
};

// A template cannot be cloned for an instruction set, these can. Half-precision parameters share the float32 passes: their
// mean gets the bits of a float32 run.
#define PASSES(C, T)                                                                                                      \
    CLONES Sums observe(const C& t, int n, bool first, const Numbers<T>& k) { return observe_chunk(t, n, first, k); } \
    CLONES Sums probe(const C& t, int n, const Numbers<T>& k) { return probe_chunk(t, n, k); }                          \
    CLONES Sums move(const C& t, int n, const Numbers<T>& k) { return move_chunk(t, n, k); }
PASSES(Chunk<float>, float)
PASSES(Chunk<double>, double)
PASSES(Rounded, float)
#undef PASSES
#define CONVERSIONS(H)                                                                                    \
    CLONES void widen(H, const uint16_t* from, float* to, int n) { widen_chunk<H>(from, to, n); }         \
    CLONES void follow(H, const uint16_t* param, float* mean, int n) { follow_chunk<H>(param, mean, n); } \
    CLONES void narrow(H, const float* mean, uint16_t* param, int n) { narrow_chunk<H>(mean, param, n); }
CONVERSIONS(Brain)
CONVERSIONS(Half)
#undef CONVERSIONS

enum Pass { OBSERVE, PROBE, MOVE };
struct Same {};  // the parameter is the mean

template <class S>
S* as(void* p, int64_t at) {
    return static_cast<S*>(p) + at;
}

template <class T>
Chunk<T> chunk_at(const Block& block, int64_t at, Chunk<T>*) {
    void* const* p = block.pointers;
    return {as<T>(p[2], at), as<T>(p[1], at), as<T>(p[3], at), as<T>(p[4], at),
            as<T>(p[5], at), as<T>(p[6], at), as<T>(p[7], at), as<T>(p[8], at)};
}

Rounded chunk_at(const Block& block, int64_t at, Rounded*) {
    void* const* p = block.pointers;
    const int64_t index = block.index + at;
    using U = uint16_t;
    return {as<float>(p[2], at), as<float>(p[1], at), as<U>(p[3], at), as<U>(p[4], at), as<U>(p[5], at), as<U>(p[6], at),
            as<U>(p[7], at),     as<U>(p[8], at),     SPREAD.of + index % CHUNK, chunk_key(block.seed, uint64_t(index / CHUNK))};
}

// H: the parameter's half precision, or Same; C: how a chunk of state is stored; T: the mean's type.
template <class H, class C, class T>
Sums work(Pass pass, const Block& block, const Constants& constants) {
    constexpr bool half = !std::is_same<H, Same>::value;
    const Numbers<T> k(constants);
    Sums sums = {0, 0, 0, 0};
    T widened[half ? CHUNK : 1];
    int n;
    for (int64_t done = 0; done < block.size; done += n) {
        const int64_t at = block.offset + done;
        const int left = CHUNK - int((block.index + at) % CHUNK);  // chunks keep to the whole parameter's grid: shards round alike
        n = int(block.size - done < left ? block.size - done : left);
        C t = chunk_at(block, at, static_cast<C*>(nullptr));
        if constexpr (half) {
            if (pass == OBSERVE) {
                widen(H(), as<uint16_t>(block.pointers[1], at), widened, n);
                follow(H(), as<uint16_t>(block.pointers[0], at), t.mean, n);
                t.grad = widened;
            }
        }
        sums.add(pass == OBSERVE ? observe(t, n, block.first, k) : pass == PROBE ? probe(t, n, k) : move(t, n, k));
        if constexpr (half)
            if (pass == MOVE) narrow(H(), t.mean, as<uint16_t>(block.pointers[0], at), n);
    }
    return sums;
}

constexpr auto FORMATS = {  // the order of FORMATS in native.py
    work<Same, Chunk<float>, float>, work<Same, Chunk<double>, double>, work<Brain, Chunk<float>, float>,
    work<Half, Chunk<float>, float>, work<Same, Rounded, float>,        work<Brain, Rounded, float>,
    work<Half, Rounded, float>};

}  // namespace

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// format: an entry of FORMATS; pass: 0 observe, 1 probe, 2 move. Per tensor: size, FIELDS pointers, whether this is its first
// observation, the seed of its rounding bits, the index of its first entry; out: its four sums.
EXPORT void arturo_pass(int32_t format, int32_t pass, int64_t tensors, const int64_t* sizes, void* const* pointers,
                        const uint8_t* first, const uint32_t* seeds, const int64_t* indices, const Constants* k,
                        int32_t threads, double* out) {
    const auto function = FORMATS.begin()[format];
    Sums* sums = reinterpret_cast<Sums*>(out);
    std::vector<Block> blocks;
    std::vector<int64_t> owners;
    std::vector<Sums> parts;
    for (int64_t i = 0; i < tensors; ++i) sums[i] = {0, 0, 0, 0};
    int64_t tensor = 0, offset = 0;
    while (tensor < tensors) {
        blocks.clear();
        owners.clear();
        while (tensor < tensors && int64_t(blocks.size()) < ROUND) {
            const int64_t left = sizes[tensor] - offset;
            if (left <= 0) {
                ++tensor;
                offset = 0;
                continue;
            }
            blocks.push_back({pointers + FIELDS * tensor, offset, left < BLOCK ? left : BLOCK, first[tensor] != 0,
                              seeds[tensor], indices[tensor]});
            owners.push_back(tensor);
            offset += BLOCK;
        }
        const int64_t count = static_cast<int64_t>(blocks.size());
        parts.resize(blocks.size());
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > 4)
        for (int64_t j = 0; j < count; ++j) parts[j] = function(Pass(pass), blocks[j], *k);
        for (int64_t j = 0; j < count; ++j) sums[owners[j]].add(parts[j]);
    }
}

// One more step and this eta, in every parameter's state.
EXPORT void arturo_count(int64_t tensors, void* const* steps_then_etas, double eta) {
    for (int64_t i = 0; i < tensors; ++i) {
        *static_cast<float*>(steps_then_etas[i]) += 1;
        *static_cast<double*>(steps_then_etas[tensors + i]) = eta;
    }
}

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Passes over memory, called through ctypes.", -1, nullptr,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
