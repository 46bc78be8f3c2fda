/* Exponent histograms of a list of tensors, in one pass over each of them.
 *
 * The layout of a row is in rows.py, that of the dtypes in encodings.py, what is promised in
 * base.py. Everything is done on integers: nothing here depends on the rounding mode, or on
 * whether the processor flushes subnormal numbers to zero.
 *
 * float32 is measured as it lies, in blocks. A survey of a block finds its extremes and leaves
 * one byte per element, that of the exponent of its bin. The extremes say between which bytes
 * all of them are, mostly one or two dozen; these are counted by comparing, many elements at a
 * time, which takes less than half the time of the increments of a table. What is inf, NaN or
 * subnormal, of which the byte does not tell, is taken out of a block before. float16 and
 * bfloat16 are widened to float32 first, block by block.
 *
 * Compiled for several sets of instructions, KERNELS naming the functions of each (histogram.h).
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "histogram.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { BLOCK = 4096 };

enum { /* words of a row */
    NUM_BINS = 384,
    ZEROS = NUM_BINS,
    NANS,
    POSITIVE_INFS,
    NEGATIVE_INFS,
    AMAX_KEY,
    AMIN_KEY = AMAX_KEY + 2,
    ROW_WORDS = AMIN_KEY + 2
};

enum { /* words of a row of blocks: rows.py */
    NUM_DISTANCES = 32,
    NUM_MANTISSAS = 16,
    NUM_LEVELS = 4,
    LEVEL_WORDS = NUM_DISTANCES + NUM_MANTISSAS,
    ZERO_BLOCKS = NUM_LEVELS * LEVEL_WORDS,
    SIZE_WORDS,
    BLOCK_ROW_WORDS = 2 * SIZE_WORDS
};

enum { MIN_EXPONENT = -191, MAX_EXPONENT = MIN_EXPONENT + NUM_BINS - 1 };

/* As encodings.DTYPES has them. FLOAT8 and above: any format of 8 bits, by its table. */
enum dtype { FLOAT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8 };

/* float32 */
#define KEY_MASK 0x7fffffffu
#define INF_KEY 0x7f800000u
#define MIN_NORMAL 0x00800000u
enum { MANTISSA = 23, BIAS = 127, UNIT = -149 };

/* Extremes of the finite keys; of the smallest, one less, so that 0 comes last. */
typedef struct {
    uint64_t high;
    uint64_t low;
} extremes;

/* Bytes compared at a time. Not 64 with AVX-512: comparing into mask registers is slower. */
#if defined(__AVX2__)
enum { LANES = 32 };
#else
enum { LANES = 16 };
#endif
typedef uint8_t vector __attribute__((vector_size(LANES)));
typedef uint8_t sixteen __attribute__((vector_size(16)));
typedef uint64_t wide_vector __attribute__((vector_size(LANES)));

static void widen(extremes *all, uint64_t high, uint64_t low)
{
    if (high > all->high) all->high = high;
    if (low < all->low) all->low = low;
}

/* The word of the bin of a subnormal float32 key. */
static int bin_of_subnormal(uint32_t key)
{
    int log2 = key > 1 ? 32 - __builtin_clz(key - 1) : 0; /* rounded up */
    return UNIT + log2 - MIN_EXPONENT;
}

/* The word of what is not finite. */
static int special(uint32_t bits)
{
    if ((bits & KEY_MASK) > INF_KEY) return NANS;
    return bits > INF_KEY ? NEGATIVE_INFS : POSITIVE_INFS;
}

/* Find the extreme keys of a block, and the byte of each element: that of its bin's exponent, 0
 * for zero. It tells nothing about what is inf, NaN or subnormal. */
static void survey(const uint32_t *bits, int n, uint8_t *bytes, uint32_t *high, uint32_t *low)
{
    uint32_t max = 0, min = UINT32_MAX;
    for (int i = 0; i < n; i++) {
        uint32_t key = bits[i] & KEY_MASK;
        max = key > max ? key : max;
        min = key - 1 < min ? key - 1 : min; /* 0 comes last */
        bytes[i] = (uint8_t)((key + MIN_NORMAL - 1) >> MANTISSA);
    }
    *high = max;
    *low = min;
}

/* Add the lanes of a vector, each at most 128. On x86-64 one instruction adds eight neighbours, which
 * compilers do not find: half of the time of a short list is this. */
static uint32_t add_lanes(vector lanes)
{
#if defined(__SSE2__)
#if defined(__AVX2__)
    __m256i eights = _mm256_sad_epu8((__m256i)lanes, _mm256_setzero_si256());
    __m128i sums = _mm_add_epi64(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
#else
    __m128i sums = _mm_sad_epu8((__m128i)lanes, _mm_setzero_si128());
#endif
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums)));
#else /* neighbours, then words, then within the word */
    const uint64_t even = 0x00ff00ff00ff00ffull;
    wide_vector all = (wide_vector)lanes, pairs = (all & even) + (all >> 8 & even);
    uint64_t fours = 0;
    for (int i = 0; i < LANES / 8; i++) fours += pairs[i];
    return fours * 0x0001000100010001ull >> 48;
#endif
}

/* Count bytes from first to last by comparing with each; return how many there were. n is a
 * multiple of LANES. */
static uint32_t compare(const uint8_t *bytes, int n, int first, int last, uint32_t *counts)
{
    enum { TOGETHER = 6, MAX_PART = 128 * LANES }; /* what add_lanes() can add */
    uint32_t counted = 0;
    for (int begin = first; begin <= last; begin += TOGETHER) {
        uint32_t totals[TOGETHER] = {0};
        for (int part = 0; part < n; part += MAX_PART) {
            int end = n - part < MAX_PART ? n : part + MAX_PART;
            vector sums[TOGETHER] = {{0}};
            for (int i = part; i < end; i += LANES) {
                vector some;
                memcpy(&some, bytes + i, LANES);
                for (int j = 0; j < TOGETHER; j++)
                    sums[j] -= (vector)(some == (uint8_t)(begin + j));
            }
            for (int j = 0; j < TOGETHER; j++) totals[j] += add_lanes(sums[j]);
        }
        for (int j = 0; j < TOGETHER && begin + j <= last; j++) {
            counts[begin + j] += totals[j];
            counted += totals[j];
        }
    }
    return counted;
}

/* Count all bytes above 0 with tables, where they differ too much to compare with each; return
 * how many there were. Four tables, because equal neighbours would wait for one another. */
static uint32_t tabulate(const uint8_t *bytes, int n, uint32_t *counts)
{
    uint16_t tables[4][256] = {{0}};
    uint32_t counted = 0;
    for (int i = 0; i < n; i += 8) {
        uint64_t eight;
        memcpy(&eight, bytes + i, 8);
        for (int j = 0; j < 8; j++) tables[j % 4][(uint8_t)(eight >> 8 * j)]++;
    }
    for (int i = 1; i < 256; i++) {
        uint32_t count = tables[0][i] + tables[1][i] + tables[2][i] + tables[3][i];
        counts[i] += count;
        counted += count;
    }
    return counted;
}

/* Count a block of float32 in which there are only zeros and normal numbers. bytes: of each
 * element, with room for LANES more; high, low: the largest key, the smallest above 0 less 1. */
static void count_ordinary(uint8_t *bytes, int n, uint32_t high, uint32_t low, uint32_t *row)
{
    enum { MANY = 64 };
    int padded = (n + LANES - 1) / LANES * LANES;
    memset(bytes + n, 0, padded - n);
    int first = (low + MIN_NORMAL) >> MANTISSA, last = (high + MIN_NORMAL - 1) >> MANTISSA;
    uint32_t *counts = row - BIAS - MIN_EXPONENT; /* of byte 0, which is no bin */
    uint32_t counted = 0;
    if (high)
        counted = last - first < MANY ? compare(bytes, padded, first, last, counts)
                                      : tabulate(bytes, padded, counts);
    row[ZEROS] += n - counted;
}

/* Count what is neither zero nor normal in a block, and return the block without it: in its
 * place are zeros, already subtracted from those of the row. */
static const uint32_t *take_out(const uint32_t *bits, int n, uint32_t *rest, uint32_t *row,
                                extremes *all)
{
    for (int i = 0; i < n; i++) {
        uint32_t key = bits[i] & KEY_MASK;
        rest[i] = key;
        if (key < INF_KEY && (key >= MIN_NORMAL || key == 0)) continue;
        rest[i] = 0;
        row[ZEROS]--;
        if (key >= INF_KEY) {
            row[special(bits[i])]++;
        } else {
            row[bin_of_subnormal(key)]++;
            widen(all, key, key - 1);
        }
    }
    return rest;
}

/* Count a block of float32. */
static void count_block(const uint32_t *bits, int n, uint32_t *row, extremes *all)
{
    uint8_t bytes[BLOCK + LANES];
    uint32_t rest[BLOCK];
    uint32_t high, low;
    survey(bits, n, bytes, &high, &low);
    if (high >= INF_KEY || low < MIN_NORMAL - 1)
        survey(take_out(bits, n, rest, row, all), n, bytes, &high, &low);
    count_ordinary(bytes, n, high, low, row);
    if (high) widen(all, high, low);
}

/* Count what is not finite in a block of float32 whose bins are not wanted. */
static void skim_block(const uint32_t *bits, int n, uint32_t *row, extremes *all)
{
    uint32_t high = 0;
    for (int i = 0; i < n; i++) {
        uint32_t key = bits[i] & KEY_MASK;
        high = key > high ? key : high;
    }
    if (high >= INF_KEY) {
        high = 0;
        for (int i = 0; i < n; i++) {
            uint32_t key = bits[i] & KEY_MASK;
            if (key >= INF_KEY)
                row[special(bits[i])]++;
            else if (key > high)
                high = key;
        }
    }
    widen(all, high, UINT64_MAX);
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* float16 to float32, in integers: the processor may be told to flush subnormal numbers. */
static void from_float16(const uint16_t *half, int n, uint32_t *bits)
{
    enum { SHIFT = 13, MIN_NORMAL_16 = 0x400, INF_16 = 0x7c00 };
    const uint32_t rebias = (uint32_t)(BIAS - 15) << MANTISSA;
    for (int i = 0; i < n; i++) {
        uint32_t key = half[i] & 0x7fffu;
        uint32_t normal = (key << SHIFT) + rebias + (key >= INF_16 ? rebias : 0);
        uint32_t subnormal = bits_of_float((float)(int32_t)key) - (24u << MANTISSA);
        uint32_t small = key ? subnormal : 0;
        bits[i] = (uint32_t)(half[i] & 0x8000u) << 16 | (key < MIN_NORMAL_16 ? small : normal);
    }
}

/* The way back, for a finite key. */
static uint32_t to_float16(uint32_t key)
{
    const uint32_t rebias = (uint32_t)(BIAS - 15) << MANTISSA;
    if (key >= rebias + MIN_NORMAL) return (key - rebias) >> 13;
    if (key == 0) return 0;
    int exponent = (int)(key >> MANTISSA) - BIAS;
    return ((key & (MIN_NORMAL - 1)) | MIN_NORMAL) >> (MANTISSA - (exponent + 24));
}

static void from_bfloat16(const uint16_t *half, int n, uint32_t *bits)
{
    for (int i = 0; i < n; i++) bits[i] = (uint32_t)half[i] << 16;
}

static void measure_32(enum dtype dtype, const void *data, int64_t numel, int64_t stride,
                       uint32_t *row, extremes *all)
{
    uint32_t wide[BLOCK];
    int64_t next = 0;
    for (int64_t begin = 0; begin < numel; begin += BLOCK) {
        int n = numel - begin < BLOCK ? (int)(numel - begin) : BLOCK;
        const uint32_t *bits = wide;
        if (dtype == FLOAT32)
            bits = (const uint32_t *)data + begin;
        else if (dtype == FLOAT16)
            from_float16((const uint16_t *)data + begin, n, wide);
        else
            from_bfloat16((const uint16_t *)data + begin, n, wide);
        if (begin == next) {
            next += stride * BLOCK;
            count_block(bits, n, row, all);
        } else {
            skim_block(bits, n, row, all);
        }
    }
    if (dtype == FLOAT16) {
        all->high = to_float16(all->high);
        if (all->low != UINT64_MAX) all->low = to_float16(all->low + 1) - 1;
    } else if (dtype == BFLOAT16) {
        all->high >>= 16;
        if (all->low != UINT64_MAX) all->low = ((all->low + 1) >> 16) - 1;
    }
}

static void measure_64(const uint64_t *data, int64_t numel, int64_t stride, uint32_t *row,
                       extremes *all)
{
    const uint64_t key_mask = INT64_MAX, inf = 0x7ffull << 52, below_one = (1ull << 52) - 1;
    for (int64_t i = 0; i < numel; i++) {
        uint64_t key = data[i] & key_mask;
        int wanted = i / BLOCK % stride == 0;
        if (key > inf) {
            row[NANS]++;
        } else if (key == inf) {
            row[data[i] == inf ? POSITIVE_INFS : NEGATIVE_INFS]++;
        } else if (!wanted) {
            widen(all, key, UINT64_MAX);
        } else if (key == 0) {
            row[ZEROS]++;
        } else {
            int exponent = (int)((key + below_one) >> 52) - 1023; /* subnormal: in the last bin anyway */
            if (exponent < MIN_EXPONENT) exponent = MIN_EXPONENT;
            if (exponent > MAX_EXPONENT) exponent = MAX_EXPONENT;
            row[exponent - MIN_EXPONENT]++;
            widen(all, key, key - 1);
        }
    }
}

/* words: of each pattern, the word of the row in which it is counted. */
static void measure_8(const uint8_t *data, int64_t numel, int64_t stride, const uint16_t *words,
                      uint32_t *row, extremes *all)
{
    uint32_t tables[2][4][256] = {{{0}}}; /* blocks that are only skimmed, and those that count */
    for (int64_t begin = 0; begin < numel; begin += BLOCK) {
        int n = numel - begin < BLOCK ? (int)(numel - begin) : BLOCK;
        uint32_t(*table)[256] = tables[begin / BLOCK % stride == 0];
        for (int i = 0; i < n; i++) table[i % 4][data[begin + i]]++;
    }
    for (int pattern = 0; pattern < 256; pattern++) {
        uint32_t counts[2];
        for (int k = 0; k < 2; k++) {
            uint32_t(*table)[256] = tables[k];
            counts[k] = table[0][pattern] + table[1][pattern] + table[2][pattern] + table[3][pattern];
        }
        int word = words[pattern], is_bin = word < NUM_BINS;
        uint64_t key = pattern & 0x7f;
        row[word] += counts[1] + (word > ZEROS ? counts[0] : 0);
        if (is_bin && counts[0]) widen(all, key, UINT64_MAX);
        if (is_bin && counts[1]) widen(all, key, key - 1);
    }
}

/* The exponent of the power of two at or below a float32 key above 0. */
static int floor_of(uint32_t key)
{
    return key >= MIN_NORMAL ? (int)(key >> MANTISSA) - BIAS : 31 - __builtin_clz(key) + UNIT;
}

/* The exponent of the bin of a float32 key above 0. */
static int ceil_of(uint32_t key)
{
    if (key >= MIN_NORMAL) return (int)((key + MIN_NORMAL - 1) >> MANTISSA) - BIAS;
    return bin_of_subnormal(key) + MIN_EXPONENT;
}

enum { /* as blocks.py has them */
    MIDDLE_STRETCH = 1024,
    MAX_STRETCH = 4096,
    MIN_MEASURED = 2048,
    MANY_MEASURED = 8192
};
enum { PART = 128, SMALLEST_BLOCK = 16, LARGEST_BLOCK = 32, BLOCKS_OF_PART = PART / SMALLEST_BLOCK };
enum { NUM_MAXIMA = NUM_LEVELS * NUM_MANTISSAS };
enum { CHUNK = 4096 }; /* elements whose codes are kept: both sizes of them fit the first cache */

/* Codes of elements of blocks of one size: 0 for zero, else one more than the distance. Those of a
 * level follow one another, so that there are few values to compare with. */
typedef struct {
    uint8_t codes[NUM_LEVELS][CHUNK + LANES];
    uint64_t filled;             /* codes of each level, in 16 bits each: an addition in a register */
    uint32_t maxima[NUM_MAXIMA]; /* by level, and by mantissa from the last part down to the first */
    uint32_t zero_blocks;
} block_codes;

#define WITH_CONSTANTS static inline __attribute__((always_inline))

/* Count a block whose largest key is normal, by its mantissa. Return where its codes belong. */
WITH_CONSTANTS uint8_t *room_for(block_codes *kept, uint64_t *filled, int size, uint32_t largest,
                                 int top)
{
    uint32_t below = ((uint32_t)(top + BIAS + 1) << 4) - 1 - (largest >> (MANTISSA - 4));
    if (below >= NUM_MAXIMA) below |= NUM_MAXIMA - NUM_MANTISSAS, below &= NUM_MAXIMA - 1;
    kept->maxima[below]++;
    uint32_t level = below / NUM_MANTISSAS, shift = 16 * level;
    uint8_t *codes = kept->codes[level] + (uint16_t)(*filled >> shift);
    *filled += (uint64_t)size << shift;
    return codes;
}

/* Count a block of zeros and normal numbers. up: of each element the exponent of its bin as a byte,
 * 0 for zero. */
WITH_CONSTANTS void count_block_of(const uint8_t *up, int size, uint32_t largest, int top,
                                   block_codes *kept, uint64_t *filled)
{
    if (largest == 0) {
        kept->zero_blocks++;
        return;
    }
    uint8_t *codes = room_for(kept, filled, size, largest, top);
    uint8_t first = (uint8_t)((largest >> MANTISSA) + 2);
    /* Written with vectors, since bytes might be anything: compilers do not reorder their stores. */
    for (int i = 0; i < size; i += SMALLEST_BLOCK) {
        sixteen exponents;
        memcpy(&exponents, up + i, sizeof exponents);
        sixteen code = first - exponents;
        sixteen is_near = (sixteen)(code < (uint8_t)NUM_DISTANCES);
        code = (code & is_near) | ((uint8_t)NUM_DISTANCES & ~is_near);
        code &= (sixteen)(exponents != 0);
        memcpy(codes + i, &code, sizeof code);
    }
}

/* Count any block, element by element. */
static void count_odd_block_of(const uint32_t *keys, int size, int top, block_codes *kept)
{
    uint32_t largest = 0;
    for (int i = 0; i < size; i++) largest = keys[i] > largest ? keys[i] : largest;
    if (largest >= INF_KEY) return;
    if (largest == 0) {
        kept->zero_blocks++;
        return;
    }
    int floor = floor_of(largest);
    uint32_t normal = largest;
    while (normal < MIN_NORMAL) normal <<= 1;
    /* A normal number as far below another top, since the level and the mantissa are what counts. */
    int level = top - floor < NUM_LEVELS ? top - floor : NUM_LEVELS - 1;
    normal = (uint32_t)(BIAS - level) << MANTISSA | (normal & (MIN_NORMAL - 1));
    uint8_t *codes = room_for(kept, &kept->filled, size, normal, 0);
    for (int i = 0; i < size; i++) {
        int code = keys[i] ? floor + 2 - ceil_of(keys[i]) : 0;
        codes[i] = (uint8_t)(code < NUM_DISTANCES ? code : NUM_DISTANCES);
    }
}

/* Find the largest keys of blocks of 16; n is a multiple of 32. */
static void find_maxima(const uint32_t *bits, int n, uint32_t *largest)
{
    int i = 0;
#if defined(__AVX2__)
    /* Four blocks together, as columns: compilers reduce each by itself, which takes twice as long. */
    const __m256i mask = _mm256_set1_epi32(KEY_MASK);
    for (; i + 64 <= n; i += 64) {
        __m256i rows[4];
        for (int j = 0; j < 4; j++) {
            const __m256i *from = (const __m256i *)(const void *)(bits + i + 16 * j);
            __m256i first = _mm256_and_si256(_mm256_loadu_si256(from), mask);
            __m256i second = _mm256_and_si256(_mm256_loadu_si256(from + 1), mask);
            rows[j] = _mm256_max_epu32(first, second);
        }
        __m256i pairs[2];
        for (int j = 0; j < 2; j++)
            pairs[j] = _mm256_max_epu32(_mm256_unpacklo_epi32(rows[2 * j], rows[2 * j + 1]),
                                        _mm256_unpackhi_epi32(rows[2 * j], rows[2 * j + 1]));
        __m256i fours = _mm256_max_epu32(_mm256_unpacklo_epi64(pairs[0], pairs[1]),
                                         _mm256_unpackhi_epi64(pairs[0], pairs[1]));
        __m128i all = _mm_max_epu32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
        _mm_storeu_si128((__m128i *)(void *)(largest + i / SMALLEST_BLOCK), all);
    }
#endif
    for (; i < n; i += SMALLEST_BLOCK) {
        uint32_t high = 0;
        for (int j = i; j < i + SMALLEST_BLOCK; j++) {
            uint32_t key = bits[j] & KEY_MASK;
            high = key > high ? key : high;
        }
        largest[i / SMALLEST_BLOCK] = high;
    }
}

/* Count blocks of 32, and the two of 16 in each. */
static void count_part(const uint32_t *bits, int n, int top, block_codes kept[2])
{
    uint32_t high, low, largest[BLOCKS_OF_PART];
    uint8_t up[PART];
    survey(bits, n, up, &high, &low);
    if (high >= INF_KEY || low < MIN_NORMAL - 1) {
        uint32_t keys[PART];
        for (int i = 0; i < n; i++) keys[i] = bits[i] & KEY_MASK;
        for (int i = 0; i < n; i += 16) count_odd_block_of(keys + i, 16, top, kept);
        for (int i = 0; i < n; i += 32) count_odd_block_of(keys + i, 32, top, kept + 1);
        return;
    }
    find_maxima(bits, n, largest);
    uint64_t filled[2] = {kept[0].filled, kept[1].filled};
    for (int i = 0; i < n; i += 32) {
        uint32_t first = largest[i / 16], second = largest[i / 16 + 1];
        count_block_of(up + i, 16, first, top, kept, filled);
        count_block_of(up + i + 16, 16, second, top, kept, filled);
        count_block_of(up + i, 32, first > second ? first : second, top, kept + 1, filled + 1);
    }
    kept[0].filled = filled[0];
    kept[1].filled = filled[1];
}

/* Count the codes that are kept, and begin anew. words: of the size in a row. */
static void count_codes(block_codes *kept, uint32_t *words)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        int n = (uint16_t)(kept->filled >> 16 * level), padded = (n + LANES - 1) / LANES * LANES;
        uint8_t *codes = kept->codes[level], last = 0;
        if (n == 0) continue;
        memset(codes + n, 0, padded - n);
        for (int i = 0; i < padded; i++) last = codes[i] > last ? codes[i] : last;
        compare(codes, padded, 1, last, words + level * LEVEL_WORDS - 1);
    }
    kept->filled = 0;
}

static void begin_blocks(block_codes *kept)
{
    memset(kept->maxima, 0, sizeof kept->maxima);
    kept->filled = kept->zero_blocks = 0;
}

static void end_blocks(block_codes *kept, uint32_t *words)
{
    count_codes(kept, words);
    words[ZERO_BLOCKS] = kept->zero_blocks;
    for (int level = 0; level < NUM_LEVELS; level++)
        for (int i = 0; i < NUM_MANTISSAS; i++)
            words[level * LEVEL_WORDS + NUM_DISTANCES + NUM_MANTISSAS - 1 - i] =
                kept->maxima[level * NUM_MANTISSAS + i];
}

/* Whether nothing was measured of a piece, or nothing can be of its blocks. */
static int has_no_blocks(enum dtype dtype, const uint32_t *row)
{
    uint64_t amin;
    memcpy(&amin, row + AMIN_KEY, sizeof amin);
    return amin == 0 || (dtype != FLOAT32 && dtype != FLOAT16 && dtype != BFLOAT16);
}

static int top_of(enum dtype dtype, const uint32_t *row)
{
    uint64_t amax;
    memcpy(&amax, row + AMAX_KEY, sizeof amax);
    uint32_t key = (uint32_t)amax;
    if (dtype == BFLOAT16) key <<= 16;
    if (dtype == FLOAT16) {
        uint16_t half = (uint16_t)amax;
        from_float16(&half, 1, &key);
    }
    return key ? floor_of(key) : 0;
}

/* Fill the row of blocks of a tensor: of each of its stretches one part. row: of its exponents. */
static void measure_blocks(enum dtype dtype, const void *data, int64_t numel, int64_t stretch,
                           const uint32_t *row, uint32_t *out)
{
    const uint32_t mask = (uint32_t)(stretch / PART - 1);
    block_codes kept[2];
    memset(out, 0, BLOCK_ROW_WORDS * sizeof *out);
    if (has_no_blocks(dtype, row)) return;
    int top = top_of(dtype, row), held = 0;
    begin_blocks(kept);
    begin_blocks(kept + 1);
    for (int64_t begin = 0, number = 0; begin < numel; begin += stretch, number++) {
        int64_t first = begin + (((uint32_t)number * 0x9E3779B1u) >> 16 & mask) * PART;
        if (first + PART > numel) first = begin;
        int n = numel - first < PART ? (int)(numel - first) : PART;
        n -= n % LARGEST_BLOCK;
        uint32_t wide[PART];
        const uint32_t *bits = wide;
        if (dtype == FLOAT32) bits = (const uint32_t *)data + first;
        else if (dtype == FLOAT16) from_float16((const uint16_t *)data + first, n, wide);
        else from_bfloat16((const uint16_t *)data + first, n, wide);
        if (held + n > CHUNK) {
            for (int size = 0; size < 2; size++) count_codes(kept + size, out + size * SIZE_WORDS);
            held = 0;
        }
        count_part(bits, n, top, kept);
        held += n;
    }
    for (int size = 0; size < 2; size++) end_blocks(kept + size, out + size * SIZE_WORDS);
}

/* Of how many elements one part is measured: blocks.stretch_of. */
static int64_t stretch_of(int64_t numel)
{
    int64_t stretch = PART;
    while (stretch < MIDDLE_STRETCH && 2 * stretch * MIN_MEASURED <= numel * PART) stretch *= 2;
    while (stretch < MAX_STRETCH && 2 * stretch * MANY_MEASURED <= numel * PART) stretch *= 2;
    return stretch;
}

/* Fill a row of blocks per tensor. rows: as they were filled by measure() for the same
 * tensors. */
static void measure_all_blocks(int64_t count, const void *const *data, const int64_t *numel,
                               const uint8_t *dtype, const void *rows, void *out)
{
    const uint32_t(*row)[ROW_WORDS] = rows;
    uint32_t(*filled)[BLOCK_ROW_WORDS] = out;
    for (int64_t i = 0; i < count; i++)
        measure_blocks(dtype[i], data[i], numel[i], stretch_of(numel[i]), row[i], filled[i]);
}

/* Whether all elements of a dtype are finite; decided by the largest key of each block. */
#define DEFINE_IS_FINITE(name, type, mask, inf)                                \
    static int name(const void *data, int64_t numel)                           \
    {                                                                          \
        const type *bits = data;                                               \
        if (bits == NULL) return 0; /* nothing is known of it */               \
        for (int64_t begin = 0; begin < numel; begin += BLOCK) {               \
            int64_t end = numel - begin < BLOCK ? numel : begin + BLOCK;       \
            type high = 0;                                                     \
            for (int64_t i = begin; i < end; i++) {                            \
                type key = bits[i] & (type)(mask);                             \
                high = key > high ? key : high;                                \
            }                                                                  \
            if (high >= (type)(inf)) return 0;                                 \
        }                                                                      \
        return 1;                                                              \
    }

DEFINE_IS_FINITE(is_finite_float64, uint64_t, INT64_MAX, 0x7ffull << 52)
DEFINE_IS_FINITE(is_finite_float32, uint32_t, KEY_MASK, INF_KEY)
DEFINE_IS_FINITE(is_finite_float16, uint16_t, 0x7fff, 0x7c00)
DEFINE_IS_FINITE(is_finite_bfloat16, uint16_t, 0x7fff, 0x7f80)

/* The sum of squares of a dtype. Squares of float32 fit into double, and SUMS of them are added up
 * side by side: a compiler may not reorder the additions of a single one. */
enum { SUMS = 16 };

#define DEFINE_SUM_OF_SQUARES(name, type, load)                                \
    static double name(const type *values, int64_t numel)                      \
    {                                                                          \
        double sums[SUMS] = {0}, sum = 0;                                      \
        int64_t whole = numel - numel % SUMS;                                  \
        for (int64_t begin = 0; begin < whole; begin += SUMS)                  \
            for (int k = 0; k < SUMS; k++) {                                   \
                double value = load(values[begin + k]);                        \
                sums[k] += value * value;                                      \
            }                                                                  \
        for (int64_t i = whole; i < numel; i++) {                              \
            double value = load(values[i]);                                    \
            sum += value * value;                                              \
        }                                                                      \
        for (int k = 0; k < SUMS; k++) sum += sums[k];                         \
        return sum;                                                            \
    }

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define AS_IT_IS(value) (value)
#define OF_BFLOAT16(half) float_of_bits((uint32_t)(half) << 16)

DEFINE_SUM_OF_SQUARES(squares_of_float64, double, AS_IT_IS)
DEFINE_SUM_OF_SQUARES(squares_of_float32, float, AS_IT_IS)
DEFINE_SUM_OF_SQUARES(squares_of_bfloat16, uint16_t, OF_BFLOAT16)

static double squares_of_float16(const uint16_t *values, int64_t numel)
{
    uint32_t bits[BLOCK];
    double sum = 0;
    for (int64_t begin = 0; begin < numel; begin += BLOCK) {
        int n = numel - begin < BLOCK ? (int)(numel - begin) : BLOCK;
        from_float16(values + begin, n, bits);
        sum += squares_of_float32((const float *)(const void *)bits, n);
    }
    return sum;
}

/* The sum of the squares of each tensor, NaN of a format of 8 bits: its values need a scale. */
static void squares(int64_t count, const void *const *data, const int64_t *numel,
                    const uint8_t *dtype, double *sums)
{
    for (int64_t i = 0; i < count; i++) {
        if (dtype[i] == FLOAT64) sums[i] = squares_of_float64(data[i], numel[i]);
        else if (dtype[i] == FLOAT32) sums[i] = squares_of_float32(data[i], numel[i]);
        else if (dtype[i] == FLOAT16) sums[i] = squares_of_float16(data[i], numel[i]);
        else if (dtype[i] == BFLOAT16) sums[i] = squares_of_bfloat16(data[i], numel[i]);
        else sums[i] = __builtin_nan("");
    }
}

/* Fill a row per tensor, and one of its blocks unless blocks is NULL. words: a table per dtype from
 * FLOAT8 on. */
static void measure(int64_t count, const void *const *data, const int64_t *numel,
                    const uint8_t *dtype, const int64_t *stride, const void *words, void *rows,
                    void *blocks)
{
    const uint16_t(*word)[256] = words;
    uint32_t(*filled)[BLOCK_ROW_WORDS] = blocks;
    for (int64_t i = 0; i < count; i++) {
        extremes all = {0, UINT64_MAX};
        int64_t step = stride[i] > 1 ? stride[i] : 1;
        uint32_t *row = (uint32_t *)rows + i * ROW_WORDS;
        memset(row, 0, ROW_WORDS * sizeof *row);
        if (dtype[i] >= FLOAT8)
            measure_8(data[i], numel[i], step, word[dtype[i] - FLOAT8], row, &all);
        else if (dtype[i] == FLOAT64)
            measure_64(data[i], numel[i], step, row, &all);
        else
            measure_32(dtype[i], data[i], numel[i], step, row, &all);
        uint64_t amin = all.low == UINT64_MAX ? INT64_MAX : all.low + 1;
        memcpy(row + AMAX_KEY, &all.high, sizeof all.high);
        memcpy(row + AMIN_KEY, &amin, sizeof amin);
        if (filled) /* while the tensor is still in the caches */
            measure_blocks(dtype[i], data[i], numel[i], stretch_of(numel[i]), row,
                           filled[i]);
    }
}

const kernels KERNELS = {
    measure,
    measure_all_blocks,
    squares,
    {is_finite_float64, is_finite_float32, is_finite_float16, is_finite_bfloat16},
};
