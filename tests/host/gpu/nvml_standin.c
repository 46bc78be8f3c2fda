/* A stand-in for libnvidia-ml.so.1, so that the real pynvml can be run without a GPU.
 *
 * What it plays is in the file that NVML_STANDIN names, lines of "key=value", read again
 * whenever it has changed:
 *
 *   gpus=2                     how many there are
 *   shown=8                    what a count says, if it is not the same
 *   gpm=1  cycles=1  mig=0  ecc=1   what they have
 *   lost=1,3                   which of them have fallen off the bus
 *   pid=4711  in_instance=1    a process, and in MIG mode which instance of each GPU it is in
 *   unprivileged=1             a GPU in MIG mode names no processes
 *   lost_code=999              what is returned for those
 *   xids=0:79,1:31             errors that are still to be reported, in this order
 *   nvmlDeviceGetPowerUsage=4  a function that fails, with this return code
 *   field74=3  gpm8=3          a field or GPM metric that does
 *   gpm7=nan                   a GPM metric without a value
 *   garbled=1                  a name that is no UTF-8
 *   hang=5                     a reading of the name takes so many seconds
 *
 * With -DOLD_DRIVER the functions are missing that came with later drivers.
 * Structures are those of nvml.h as pynvml writes them down.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15
};

#define MAX_GPUS 16
#define MAX_MIG 2
#define TEXT 4096

typedef struct { int gpu; int mig; } Device; /* mig is -1 for the GPU itself */
typedef struct { int gpu; } Sample;

static Device devices[MAX_GPUS][MAX_MIG + 1];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char configuration[TEXT];
static struct timespec changed;
static int initialised, open_samples, open_sets, xids_told;

static void load(void) {
    const char *path = getenv("NVML_STANDIN");
    struct stat status;
    if (!path || stat(path, &status)) return;
    pthread_mutex_lock(&mutex);
    if (memcmp(&changed, &status.st_mtim, sizeof changed)) {
        FILE *file = fopen(path, "r");
        if (file) {
            configuration[0] = '\n';
            size_t size = fread(configuration + 1, 1, TEXT - 2, file);
            configuration[size + 1] = 0;
            fclose(file);
            changed = status.st_mtim;
            xids_told = 0;
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* The text after "\nkey=", NULL if there is none. */
static const char *setting(const char *key) {
    char line[128];
    load();
    snprintf(line, sizeof line, "\n%s=", key);
    const char *found = strstr(configuration, line);
    return found ? found + strlen(line) : NULL;
}

static int number(const char *key, int fallback) {
    const char *text = setting(key);
    return text ? atoi(text) : fallback;
}

static int listed(const char *key, int value) {
    const char *text = setting(key);
    while (text && *text && *text != '\n') {
        if (atoi(text) == value) return 1;
        text += strcspn(text, ",\n");
        if (*text == ',') text++;
    }
    return 0;
}

/* What stands before an answer: initialised, not lost, not set to fail. */
static int trouble(const char *function, const Device *device) {
    if (!initialised) return UNINITIALIZED;
    int code = number(function, SUCCESS);
    if (code) return code;
    if (device && listed("lost", device->gpu)) return number("lost_code", GPU_IS_LOST);
    return SUCCESS;
}

#define CHECK(device) \
    do { int code = trouble(__func__, (const Device *)(device)); if (code) return code; } while (0)
#define DEVICE const Device *device

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    int code = number("nvmlInitWithFlags", SUCCESS);
    if (code) return code;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int mig = -1; mig < MAX_MIG; mig++) devices[gpu][mig + 1] = (Device){gpu, mig};
    initialised = 1;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised = 0;
    return SUCCESS;
}

/* For the tests: samples and event sets that were not given back. */
int standin_open_samples(void) { return open_samples; }
int standin_open_sets(void) { return open_sets; }
int standin_initialised(void) { return initialised; }
void standin_reset(void) { open_samples = open_sets = initialised = 0; }

const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *text, u32 size) {
    CHECK(NULL);
    snprintf(text, size, "580.65.06");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version) { CHECK(NULL); *version = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(u32 *count) {
    CHECK(NULL);
    *count = number("shown", number("gpus", 1));
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **device) {
    CHECK(NULL);
    if (index >= (u32)number("gpus", 1)) return INVALID_ARGUMENT;
    if (listed("lost", index)) return GPU_IS_LOST;
    *device = &devices[index][0];
    return SUCCESS;
}

int nvmlDeviceGetUUID(DEVICE, char *text, u32 size) {
    CHECK(device);
    if (device->mig < 0) snprintf(text, size, "GPU-0000000%d", device->gpu);
    else snprintf(text, size, "MIG-0000000%d-%d", device->gpu, device->mig);
    return SUCCESS;
}

int nvmlDeviceGetName(DEVICE, char *text, u32 size) {
    CHECK(device);
    sleep(number("hang", 0));
    if (number("garbled", 0)) { snprintf(text, size, "NVIDIA \xff\xfe"); return SUCCESS; }
    snprintf(text, size, device->mig < 0 ? "NVIDIA Stand-in" : "NVIDIA Stand-in MIG 3g.40gb");
    return SUCCESS;
}

typedef struct {
    char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(DEVICE, PciInfo *info) {
    CHECK(device);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:0%X:00.0", device->gpu);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(DEVICE, u32 *minor) { CHECK(device); *minor = device->gpu; return SUCCESS; }

int nvmlDeviceGetCudaComputeCapability(DEVICE, int *major, int *minor) {
    CHECK(device);
    *major = number("gpm", 1) ? 9 : 8;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(DEVICE, u32 *rates) {
    CHECK(device);
    if (number("mig", 0)) return NOT_SUPPORTED;
    rates[0] = 40 + device->gpu;
    rates[1] = 20;
    return SUCCESS;
}

typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;

int nvmlDeviceGetMemoryInfo(DEVICE, Memory *memory) {
    CHECK(device);
    *memory = (Memory){80ull << 30, 68ull << 30, 12ull << 30};
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(DEVICE, Memory2 *memory) {
    CHECK(device);
    u64 unit = 1ull << 30;
    if (device->mig >= 0) *memory = (Memory2){memory->version, 40 * unit, unit, 34 * unit, 5 * unit};
    else *memory = (Memory2){memory->version, 80 * unit, 2 * unit, 68 * unit, 10 * unit};
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(DEVICE, u32 *temperature) {
    CHECK(device);
    temperature[2] = 61;
    return SUCCESS;
}
#endif

int nvmlDeviceGetTemperature(DEVICE, u32 sensor, u32 *temperature) {
    CHECK(device);
    (void)sensor;
    *temperature = 60;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(DEVICE, u32 *milliwatts) { CHECK(device); *milliwatts = 350500; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(DEVICE, u32 *milliwatts) { CHECK(device); *milliwatts = 700000; return SUCCESS; }

int nvmlDeviceGetClockInfo(DEVICE, u32 domain, u32 *mhz) { CHECK(device); *mhz = domain == 1 ? 1755 : 2619; return SUCCESS; }
int nvmlDeviceGetMaxClockInfo(DEVICE, u32 domain, u32 *mhz) { CHECK(device); *mhz = domain == 1 ? 1980 : 2619; return SUCCESS; }

int nvmlDeviceGetTotalEccErrors(DEVICE, u32 severity, u32 since, u64 *count) {
    CHECK(device);
    if (!number("ecc", 1)) return NOT_SUPPORTED;
    *count = (severity ? 1 : 7) + 100 * since;
    return SUCCESS;
}


typedef struct {
    u32 field, scope; long long time, latency; u32 type, status; u64 value;
} FieldValue;

int nvmlDeviceGetFieldValues(DEVICE, int count, FieldValue *values) {
    CHECK(device);
    for (int i = 0; i < count; i++) {
        char key[16];
        snprintf(key, sizeof key, "field%u", values[i].field);
        values[i].status = number(key, SUCCESS);
        values[i].type = 3;
        switch (values[i].field) {
        case 82: values[i].type = 1; values[i].value = 0xdead00000000ull | 70; break;
        case 74: values[i].value = 1500000000ull; break;
        case 75: values[i].value = 900000000ull; break;
#ifdef OLD_DRIVER
        case 269: case 270: case 271: values[i].status = INVALID_ARGUMENT; break;
#else
        case 269: values[i].value = 250000000ull; break;
#endif
        default: values[i].value = 0;
        }
    }
    return SUCCESS;
}

typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } Process;

static int processes(DEVICE, u32 *count, Process *list) {
    u32 pid = number("pid", 0), room = *count;
    if (number("mig", 0) && device->mig < 0 && number("unprivileged", 0)) return NO_PERMISSION;
    if (device->mig >= 0 && device->mig + 1 != number("in_instance", 1)) pid = 0;
    *count = pid ? 1 : 0;
    if (!pid) return SUCCESS;
    if (!list || room < 1) return INSUFFICIENT_SIZE;
    list[0] = (Process){pid, number("memory", 1) ? (u64)(device->gpu + 1) << 30 : ~0ull, 0, 0};
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v3(DEVICE, u32 *count, Process *list) { CHECK(device); return processes(device, count, list); }

int nvmlDeviceGetRemappedRows(DEVICE, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failure) {
    CHECK(device);
    *correctable = 3; *uncorrectable = 2; *pending = 1; *failure = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(DEVICE, u32 *current, u32 *pending) {
    CHECK(device);
    *current = *pending = number("mig", 0);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(DEVICE, u32 *count) { CHECK(device); *count = 7; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(DEVICE, u32 index, const Device **mig) {
    CHECK(device);
    if (index >= MAX_MIG) return NOT_FOUND;
    *mig = &devices[device->gpu][index + 1];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(DEVICE, u32 *id) { CHECK(device); *id = device->mig + 1; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(DEVICE, u32 *id) { CHECK(device); *id = 0; return SUCCESS; }

typedef struct { u32 version, supported; } GpmSupport;

int nvmlGpmQueryDeviceSupport(DEVICE, GpmSupport *support) {
    CHECK(device);
    support->supported = number("gpm", 1);
    return SUCCESS;
}

int nvmlGpmSampleAlloc(Sample **sample) {
    CHECK(NULL);
    *sample = calloc(1, sizeof **sample);
    open_samples++;
    return SUCCESS;
}

int nvmlGpmSampleFree(Sample *sample) { CHECK(NULL); free(sample); open_samples--; return SUCCESS; }

static int samplers;

int nvmlGpmSampleGet(DEVICE, Sample *sample) {
    CHECK(device);
    if (__sync_add_and_fetch(&samplers, 1) > 1) abort(); /* as NVML may, from two threads */
    sample->gpu = device->gpu;
    __sync_sub_and_fetch(&samplers, 1);
    return SUCCESS;
}

int nvmlGpmMigSampleGet(DEVICE, u32 instance, Sample *sample) {
    CHECK(device);
    sample->gpu = 100 * instance + device->gpu;
    return SUCCESS;
}

typedef struct { u32 id, status; double value; const char *texts[3]; } GpmMetric;
typedef struct { u32 version, count; Sample *older, *newer; GpmMetric metrics[]; } GpmMetrics;

int nvmlGpmMetricsGet(GpmMetrics *got) {
    CHECK(NULL);
    for (u32 i = 0; i < got->count; i++) {
        GpmMetric *metric = &got->metrics[i];
        char key[16];
        snprintf(key, sizeof key, "gpm%u", metric->id);
        const char *set = setting(key);
        if (metric->id >= 248 && !number("cycles", 1)) return INVALID_ARGUMENT;
        metric->status = SUCCESS;
        metric->value = metric->id >= 248 ? metric->id * 1e9 : metric->id + got->newer->gpu * 0.125;
        if (set && !strncmp(set, "nan", 3)) metric->value = NAN;
        else if (set) metric->status = atoi(set);
    }
    return SUCCESS;
}
#else
int nvmlDeviceGetComputeRunningProcesses_v2(DEVICE, u32 *count, Process *list) { CHECK(device); return processes(device, count, list); }
#endif

typedef struct { int registered[MAX_GPUS]; } EventSet;
typedef struct { const Device *device; u64 type, data; u32 gpu_instance, compute_instance; } Event;

int nvmlEventSetCreate(EventSet **set) {
    CHECK(NULL);
    *set = calloc(1, sizeof **set);
    open_sets++;
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set) { CHECK(NULL); free(set); open_sets--; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(DEVICE, u64 *types) { CHECK(device); *types = number("events", 0x1f); return SUCCESS; }

int nvmlDeviceRegisterEvents(DEVICE, u64 types, EventSet *set) {
    CHECK(device);
    set->registered[device->gpu] = types & 8;
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, Event *event, u32 ms) {
    CHECK(NULL);
    const char *text = setting("xids");
    for (int i = 0; text && i < xids_told; i++) {
        text += strcspn(text, ",\n");
        text = *text == ',' ? text + 1 : NULL;
    }
    int gpu, code;
    if (!text || sscanf(text, "%d:%d", &gpu, &code) != 2 || !set->registered[gpu]) {
        usleep((ms < 20 ? ms : 20) * 1000); /* shorter than asked for: the tests wait for it */
        return TIMEOUT;
    }
    xids_told++;
    *event = (Event){&devices[gpu][0], 8, code, 0xffffffff, 0xffffffff};
    return SUCCESS;
}
