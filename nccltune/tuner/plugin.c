/*
 * NCCL tuner plugin: the choices of a policy file where a rule matches, NCCL's own everywhere else.
 *
 * One engine behind the interface versions that NCCL loads: v3 (2.22 and 2.23), v4 (2.24 to 2.27), v5 (2.28 and 2.29),
 * v6 (2.30 and later). NCCL takes the highest version it knows (src/plugin/tuner.cc; src/misc/tuner.cc up to 2.25). v2 is
 * left out: it does not show which choices the communicator has, and NCCL 2.21 would use whatever it is told.
 *
 * Every function returns success, always: NCCL fails the communicator or the collective otherwise (init.cc, enqueue.cc
 * wrap the calls in NCCLCHECK, whatever the header says of a fallback).
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "policy.h"

#define EXPORT __attribute__((visibility("default")))
#define CONFIG_VARIABLE "NCCL_TUNER_CONFIG_FILE"

/* Values of ncclDebugLogLevel and ncclDebugLogSubSys: src/include/nccl_common.h, the same in 2.22.3 to 2.30.7. */
enum { LOG_WARN = 2, LOG_INFO = 3 };
#define SUBSYS_INIT_TUNING (0x1UL | 0x40UL)
#define SUBSYS_ENV 0x80UL
#define SUBSYS_ALL (~0UL)

enum { SUCCESS = 0 };
enum { COLLNET_DIRECT = 2, COLLNET_CHAIN = 3, NVLS = 4 };

typedef void (*logger_t)(int level, unsigned long subsys, const char *file, int line, const char *format, ...);

#define SAY(logger, level, subsys, ...) \
  do { \
    if ((logger) != NULL) (logger)((level), (subsys), "nccltune/tuner/plugin.c", __LINE__, __VA_ARGS__); \
  } while (0)

/* One communicator. */
struct tuner {
  logger_t logger;
  uint64_t num_ranks;
  uint64_t num_nodes;
  unsigned char is_told[POLICY_MAX_RULES];  /* rules whose pair was missing and that were named in the log */
  struct policy policy;
};

/* A context only when there is something to apply: without one every call leaves NCCL alone. */
static void start(void **context, size_t num_ranks, size_t num_nodes, logger_t logger) {
  char error[POLICY_ERROR_BYTES] = "out of memory";
  const char *path = getenv(CONFIG_VARIABLE);
  *context = NULL;
  if (path == NULL || path[0] == '\0') {
    SAY(logger, LOG_WARN, SUBSYS_ALL, "nccltune tuner: " CONFIG_VARIABLE " is not set: NCCL decides everything");
    return;
  }
  SAY(logger, LOG_INFO, SUBSYS_ENV, CONFIG_VARIABLE " set by environment to %s", path);
  struct tuner *tuner = calloc(1, sizeof(*tuner));
  if (tuner == NULL || policy_load(path, &tuner->policy, error, sizeof(error))) {
    SAY(logger, LOG_WARN, SUBSYS_ALL, "nccltune tuner: policy %s refused: %s: NCCL decides everything", path, error);
    free(tuner);
    return;
  }
  tuner->logger = logger;
  tuner->num_ranks = num_ranks;
  tuner->num_nodes = num_nodes;
  SAY(logger, LOG_INFO, SUBSYS_INIT_TUNING, "nccltune tuner: %d rules, %d for %zu ranks on %zu nodes, checksum %08x, policy %s",
      (int)tuner->policy.num_rules, policy_count(&tuner->policy, num_ranks, num_nodes), num_ranks, num_nodes,
      (unsigned)tuner->policy.checksum, path);
  *context = tuner;
}

/*
 * NCCL bounds a plugin's channel count by the communicator's only outside CollNet, to which NVLS over several nodes
 * belongs too (src/enqueue.cc, scheduleCollTasksToPlan, 2.22.3 to 2.30.7): there the count stays NCCL's.
 */
static int is_count_bounded(const struct tuner *tuner, int algorithm) {
  return algorithm != COLLNET_DIRECT && algorithm != COLLNET_CHAIN && (algorithm != NVLS || tuner->num_nodes == 1);
}

/*
 * The table is float[num_algos][num_protos] in microseconds behind a float** (src/enqueue.cc, ncclGetAlgoInfo); a
 * negative entry is a pair that this communicator or datatype does not have. The least entry wins, so 0 does.
 */
static void apply(void *context, int collective, size_t num_bytes, float **cost_table, int num_algos, int num_protos,
                  int *num_channels) {
  struct tuner *tuner = context;
  float *table = (float *)(void *)cost_table;
  if (tuner == NULL || table == NULL) return;
  const struct policy_rule *rule =
      policy_find(&tuner->policy, collective, num_bytes, tuner->num_ranks, tuner->num_nodes);
  if (rule == NULL) return;
  float *cost = NULL;
  if (rule->algorithm < num_algos && rule->protocol < num_protos) {
    cost = &table[(size_t)rule->algorithm * (size_t)num_protos + (size_t)rule->protocol];
  }
  if (cost == NULL || !(*cost >= 0.0f)) {
    unsigned char *is_told = &tuner->is_told[rule - tuner->policy.rules];
    if (!*is_told) {
      *is_told = 1;
      SAY(tuner->logger, LOG_INFO, SUBSYS_INIT_TUNING, "nccltune tuner: line %d: no %s %s for %s here: NCCL decides",
          (int)rule->line, policy_algorithm_name(rule->algorithm), policy_protocol_name(rule->protocol),
          policy_collective_name(rule->collective));
    }
    return;
  }
  *cost = 0.0f;
  if (rule->num_channels > 0 && num_channels != NULL && is_count_bounded(tuner, rule->algorithm)) {
    *num_channels = rule->num_channels;
  }
}

/* v3: src/include/nccl_tuner.h of 2.22.3. */
static int init_v3(size_t num_ranks, size_t num_nodes, logger_t logger, void **context) {
  start(context, num_ranks, num_nodes, logger);
  return SUCCESS;
}

static int choose_v3(void *context, int collective, size_t num_bytes, int num_pipe_ops, float **cost_table,
                     int num_algos, int num_protos, int *num_channels) {
  (void)num_pipe_ops;
  apply(context, collective, num_bytes, cost_table, num_algos, num_protos, num_channels);
  return SUCCESS;
}

static int finish(void *context) {
  free(context);
  return SUCCESS;
}

/* v4: src/include/nccl_tuner.h of 2.24.3; one argument more, whether user buffers may be registered. */
static int choose_v4(void *context, int collective, size_t num_bytes, int num_pipe_ops, float **cost_table,
                     int num_algos, int num_protos, int is_registered, int *num_channels) {
  (void)is_registered;
  return choose_v3(context, collective, num_bytes, num_pipe_ops, cost_table, num_algos, num_protos, num_channels);
}

/* v5: src/include/plugin/tuner/tuner_v5.h of 2.28.3; NCCL's latency and bandwidth constants stay as they are. */
static int init_v5(void **context, uint64_t comm_id, size_t num_ranks, size_t num_nodes, logger_t logger,
                   void *nvlink_domains, void *constants) {
  (void)comm_id;
  (void)nvlink_domains;
  (void)constants;
  start(context, num_ranks, num_nodes, logger);
  return SUCCESS;
}

typedef int (*init_v3_t)(size_t, size_t, logger_t, void **);
typedef int (*init_v5_t)(void **, uint64_t, size_t, size_t, logger_t, void *, void *);
typedef int (*choose_v3_t)(void *, int, size_t, int, float **, int, int, int *);
typedef int (*choose_v4_t)(void *, int, size_t, int, float **, int, int, int, int *);
typedef int (*finish_t)(void *);
typedef int (*chunk_size_t)(void *, int, size_t, int, int, int, size_t *);

struct tuner_v3 {
  const char *name;
  init_v3_t init;
  choose_v3_t get_coll_info;
  finish_t destroy;
};

struct tuner_v4 {
  const char *name;
  init_v3_t init;
  choose_v4_t get_coll_info;
  finish_t destroy;
};

struct tuner_v5 {
  const char *name;
  init_v5_t init;
  choose_v4_t get_coll_info;
  finish_t finalize;
};

/* v6: src/include/plugin/tuner/tuner_v6.h of 2.30.3; v5 and an optional chunk size, which stays NCCL's. */
struct tuner_v6 {
  const char *name;
  init_v5_t init;
  choose_v4_t get_coll_info;
  finish_t finalize;
  chunk_size_t get_chunk_size;
};

EXPORT extern const struct tuner_v3 ncclTunerPlugin_v3;
EXPORT extern const struct tuner_v4 ncclTunerPlugin_v4;
EXPORT extern const struct tuner_v5 ncclTunerPlugin_v5;
EXPORT extern const struct tuner_v6 ncclTunerPlugin_v6;

const struct tuner_v3 ncclTunerPlugin_v3 = {"nccltune", init_v3, choose_v3, finish};
const struct tuner_v4 ncclTunerPlugin_v4 = {"nccltune", init_v3, choose_v4, finish};
const struct tuner_v5 ncclTunerPlugin_v5 = {"nccltune", init_v5, choose_v4, finish};
const struct tuner_v6 ncclTunerPlugin_v6 = {"nccltune", init_v5, choose_v4, finish, NULL};
