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
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

enum { /* words of a row of blocks: block_rows.py */
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

/* Add the lanes of a vector, each at most 128: neighbours, then words, then within the word. */
static uint32_t add_lanes(vector lanes)
{
    const uint64_t even = 0x00ff00ff00ff00ffull;
    wide_vector all = (wide_vector)lanes, pairs = (all & even) + (all >> 8 & even);
    uint64_t fours = 0;
    for (int i = 0; i < LANES / 8; i++) fours += pairs[i];
    return fours * 0x0001000100010001ull >> 48;
}

/* Count bytes from first to last by comparing with each; return how many there were. n is a
 * multiple of LANES. */
static uint32_t compare(const uint8_t *bytes, int n, int first, int last, uint32_t *counts)
{
    enum { TOGETHER = 4, MAX_PART = 128 * LANES }; /* what add_lanes() can add */
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

/* The part of [1, 2) that the mantissa of a float32 key above 0 lies in. */
static int part_of_mantissa(uint32_t key)
{
    while (key < MIN_NORMAL) key <<= 1;
    return key >> (MANTISSA - 4) & (NUM_MANTISSAS - 1);
}

enum { PART = 128, WAYS = 4, LARGEST_BLOCK = 32 };

/* Elements by level and distance; those that do not count come last. WAYS of them, because equal
 * neighbours would wait for one another. */
enum { CODES = NUM_LEVELS * NUM_DISTANCES, UNCOUNTED = CODES };
typedef uint32_t code_table[WAYS][CODES + 1];

#define WITH_CONSTANTS static inline __attribute__((always_inline))

/* Count a block. up: of each element the exponent of its bin as a byte, 0 for zero, where all is
 * regular; NULL where it is to be found. */
WITH_CONSTANTS void count_block_of(const uint32_t *block, const uint8_t *up, int size,
                                   uint32_t largest, int top, code_table table, uint32_t *words)
{
    if (largest >= INF_KEY) return;
    if (largest == 0) {
        words[ZERO_BLOCKS]++;
        return;
    }
    int floor = floor_of(largest);
    int level = top - floor < NUM_LEVELS ? top - floor : NUM_LEVELS - 1;
    words[level * LEVEL_WORDS + NUM_DISTANCES + part_of_mantissa(largest)]++;
    uint8_t codes[LARGEST_BLOCK];
    uint8_t base = (uint8_t)(level * NUM_DISTANCES), first = (uint8_t)(floor + BIAS + 1);
    for (int i = 0; i < size; i++) {
        uint8_t distance;
        if (up)
            distance = (uint8_t)(first - up[i]);
        else if (block[i] && floor + 1 - ceil_of(block[i]) < NUM_DISTANCES)
            distance = (uint8_t)(floor + 1 - ceil_of(block[i]));
        else
            distance = NUM_DISTANCES - 1;
        distance = distance < NUM_DISTANCES ? distance : NUM_DISTANCES - 1;
        codes[i] = (up ? up[i] != 0 : block[i] != 0) ? (uint8_t)(base + distance) : UNCOUNTED;
    }
    for (int i = 0; i < size; i += 8) {
        uint64_t eight;
        memcpy(&eight, codes + i, 8);
        for (int j = 0; j < 8; j++) table[j % WAYS][(uint8_t)(eight >> 8 * j)]++;
    }
}

/* Count blocks of 32, and the two of 16 in each. */
WITH_CONSTANTS void count_blocks(const uint32_t *keys, const uint8_t *up, int n, int top,
                                 code_table tables[2], uint32_t *row)
{
    for (int i = 0; i < n; i += 32) {
        uint32_t largest[2] = {0, 0};
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 16; j++) {
                uint32_t key = keys[i + 16 * half + j];
                largest[half] = key > largest[half] ? key : largest[half];
            }
        const uint8_t *bytes = up ? up + i : NULL, *second = up ? up + i + 16 : NULL;
        count_block_of(keys + i, bytes, 16, largest[0], top, tables[0], row);
        count_block_of(keys + i + 16, second, 16, largest[1], top, tables[0], row);
        uint32_t both = largest[0] > largest[1] ? largest[0] : largest[1];
        count_block_of(keys + i, bytes, 32, both, top, tables[1], row + SIZE_WORDS);
    }
}

static void count_part(const uint32_t *bits, int n, int top, code_table tables[2], uint32_t *row)
{
    uint32_t keys[PART], high, low;
    uint8_t bytes[PART];
    for (int i = 0; i < n; i++) keys[i] = bits[i] & KEY_MASK;
    survey(keys, n, bytes, &high, &low);
    if (high >= INF_KEY || low < MIN_NORMAL - 1)
        count_blocks(keys, NULL, n, top, tables, row);
    else
        count_blocks(keys, bytes, n, top, tables, row);
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

/* Fill a row of blocks per tensor: of each of its stretches one part. rows: as they were filled
 * by ampwatch_measure for the same tensors. */
void ampwatch_measure_blocks(int64_t count, const void *const *data, const int64_t *numel,
                             const uint8_t *dtype, const int64_t *stretch,
                             const uint32_t (*rows)[ROW_WORDS], uint32_t (*out)[BLOCK_ROW_WORDS])
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t mask = (uint32_t)(stretch[i] / PART - 1);
        code_table tables[2] = {{{0}}};
        uint32_t *row = out[i];
        memset(row, 0, sizeof *out);
        if (has_no_blocks(dtype[i], rows[i])) continue;
        int top = top_of(dtype[i], rows[i]);
        for (int64_t begin = 0, number = 0; begin < numel[i]; begin += stretch[i], number++) {
            int64_t first = begin + (((uint32_t)number * 0x9E3779B1u) >> 16 & mask) * PART;
            if (first + PART > numel[i]) first = begin;
            int n = numel[i] - first < PART ? (int)(numel[i] - first) : PART;
            n -= n % LARGEST_BLOCK;
            uint32_t wide[PART];
            const uint32_t *bits = wide;
            if (dtype[i] == FLOAT32) bits = (const uint32_t *)data[i] + first;
            else if (dtype[i] == FLOAT16) from_float16((const uint16_t *)data[i] + first, n, wide);
            else from_bfloat16((const uint16_t *)data[i] + first, n, wide);
            count_part(bits, n, top, tables, row);
        }
        for (int size = 0; size < 2; size++)
            for (int level = 0; level < NUM_LEVELS; level++)
                for (int way = 0; way < WAYS; way++) {
                    const uint32_t *counts = tables[size][way] + level * NUM_DISTANCES;
                    uint32_t *words = row + size * SIZE_WORDS + level * LEVEL_WORDS;
                    for (int i = 0; i < NUM_DISTANCES; i++) words[i] += counts[i];
                }
    }
}

/* Whether all elements of a dtype are finite; decided by the largest key of each block. */
#define DEFINE_IS_FINITE(name, type, mask, inf)                                \
    int name(const type *bits, int64_t numel)                                  \
    {                                                                          \
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

DEFINE_IS_FINITE(ampwatch_is_finite_float64, uint64_t, INT64_MAX, 0x7ffull << 52)
DEFINE_IS_FINITE(ampwatch_is_finite_float32, uint32_t, KEY_MASK, INF_KEY)
DEFINE_IS_FINITE(ampwatch_is_finite_float16, uint16_t, 0x7fff, 0x7c00)
DEFINE_IS_FINITE(ampwatch_is_finite_bfloat16, uint16_t, 0x7fff, 0x7f80)

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
void ampwatch_squares(int64_t count, const void *const *data, const int64_t *numel,
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

/* Fill a row per tensor. words: a table per dtype from FLOAT8 on. */
void ampwatch_measure(int64_t count, const void *const *data, const int64_t *numel,
                      const uint8_t *dtype, const int64_t *stride,
                      const uint16_t (*words)[256], uint32_t (*rows)[ROW_WORDS])
{
    for (int64_t i = 0; i < count; i++) {
        extremes all = {0, UINT64_MAX};
        int64_t step = stride[i] > 1 ? stride[i] : 1;
        uint32_t *row = rows[i];
        memset(row, 0, sizeof *rows);
        if (dtype[i] >= FLOAT8)
            measure_8(data[i], numel[i], step, words[dtype[i] - FLOAT8], row, &all);
        else if (dtype[i] == FLOAT64)
            measure_64(data[i], numel[i], step, row, &all);
        else
            measure_32(dtype[i], data[i], numel[i], step, row, &all);
        uint64_t amin = all.low == UINT64_MAX ? INT64_MAX : all.low + 1;
        memcpy(row + AMAX_KEY, &all.high, sizeof all.high);
        memcpy(row + AMIN_KEY, &amin, sizeof amin);
    }
}
