/*
 * The per-size policy: read the file, find the rule for one collective. Knows nothing of NCCL's plugin interface.
 * File format: docs/tuner-plugin.md. nccltune/tuner/policy.py reads and writes the same, message for message.
 */
#ifndef NCCLTUNE_POLICY_H
#define NCCLTUNE_POLICY_H

#include <stddef.h>
#include <stdint.h>

#define POLICY_VERSION_LINE "nccltune-policy 1"

enum {
  POLICY_MAX_RULES = 256,
  POLICY_MAX_LINE_BYTES = 255,          /* without the line feed */
  POLICY_MAX_FILE_BYTES = 256 * 1024,
  POLICY_MAX_CHANNELS = 64,             /* MAXCHANNELS of NCCL 2.25 and later, src/include/device.h */
  POLICY_ERROR_BYTES = 160,
};

struct policy_rule {
  uint64_t min_bytes;                   /* both ends belong to the range */
  uint64_t max_bytes;
  int32_t collective;                   /* the numbers are NCCL's own, see policy.c */
  int32_t algorithm;
  int32_t protocol;
  int32_t num_channels;                 /* 0: NCCL's own count */
  int32_t num_ranks;                    /* 0: any */
  int32_t num_nodes;                    /* 0: any */
  int32_t line;
};

struct policy {
  int32_t num_rules;
  uint32_t checksum;                    /* FNV-1a of the file, so that logs of two nodes can be compared */
  struct policy_rule rules[POLICY_MAX_RULES];
};

/* Read a policy from memory. Returns 0, or -1 with one line in error; the policy then holds no rules. */
int policy_parse(const char *text, size_t num_bytes, struct policy *policy, char *error, size_t error_bytes);

/* The same from a file, which must be a regular one: a pipe could block the communicator for ever. */
int policy_load(const char *path, struct policy *policy, char *error, size_t error_bytes);

/* The first rule that matches, or NULL. */
const struct policy_rule *policy_find(const struct policy *policy, int collective, uint64_t num_bytes,
                                      uint64_t num_ranks, uint64_t num_nodes);

/* How many rules can match in a communicator of this many ranks and nodes. */
int policy_count(const struct policy *policy, uint64_t num_ranks, uint64_t num_nodes);

const char *policy_collective_name(int collective);
const char *policy_algorithm_name(int algorithm);
const char *policy_protocol_name(int protocol);

#endif
