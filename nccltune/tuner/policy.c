/* Reading and matching the policy. Any bytes may come in: nothing is trusted, nothing is read past num_bytes. */
#include "policy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The position of a name is NCCL's number for it: ncclFunc_t (src/include/nccl_common.h, the same in 2.22.3 to 2.30.7),
 * NCCL_ALGO_* and NCCL_PROTO_* (nccl_common.h in 2.22.3; src/include/plugin/nccl_tuner.h in 2.28.9 and 2.30.7).
 */
static const char *const COLLECTIVES[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
static const char *const ALGORITHMS[] = {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
static const char *const PROTOCOLS[] = {"LL", "LL128", "Simple"};

#define NUM(names) ((int)(sizeof(names) / sizeof((names)[0])))
enum { NUM_FIELDS = 8, MAX_SHOWN_BYTES = 24 };

struct span {
  const char *start;
  size_t num_bytes;
};

struct parser {
  struct policy *policy;
  char *error;
  size_t error_bytes;
  int line;
};

static int fail(struct parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(struct parser *parser, const char *format, ...) {
  char text[POLICY_ERROR_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (parser->line > 0) {
    snprintf(parser->error, parser->error_bytes, "line %d: %s", parser->line, text);
  } else {
    snprintf(parser->error, parser->error_bytes, "%s", text);
  }
  return -1;
}

/* A word of the file as it may appear in a log: short, printable ASCII. */
static const char *shown(struct span word, char buffer[MAX_SHOWN_BYTES + 1]) {
  size_t n = word.num_bytes < MAX_SHOWN_BYTES ? word.num_bytes : MAX_SHOWN_BYTES;
  for (size_t i = 0; i < n; i++) {
    char c = word.start[i];
    buffer[i] = c >= ' ' && c <= '~' ? c : '?';
  }
  buffer[n] = '\0';
  return buffer;
}

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static struct span trimmed(struct span text) {
  while (text.num_bytes > 0 && is_blank(text.start[0])) {
    text.start++;
    text.num_bytes--;
  }
  while (text.num_bytes > 0 && is_blank(text.start[text.num_bytes - 1])) text.num_bytes--;
  return text;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static int is_word(struct span text, const char *word) {
  size_t n = strlen(word);
  if (text.num_bytes != n) return 0;
  for (size_t i = 0; i < n; i++) {
    if (lower(text.start[i]) != lower(word[i])) return 0;
  }
  return 1;
}

static int read_name(struct parser *parser, struct span word, const char *what, const char *const *names, int num_names,
                     int32_t *number) {
  char buffer[MAX_SHOWN_BYTES + 1];
  for (int i = 0; i < num_names; i++) {
    if (is_word(word, names[i])) {
      *number = i;
      return 0;
    }
  }
  return fail(parser, "unknown %s '%s'", what, shown(word, buffer));
}

/* Digits only: a sign, a unit or a fraction is a mistake worth stopping at. */
static int read_number(struct parser *parser, struct span word, const char *what, uint64_t least, uint64_t most,
                       uint64_t *number) {
  char buffer[MAX_SHOWN_BYTES + 1];
  uint64_t value = 0;
  int is_good = word.num_bytes > 0;
  for (size_t i = 0; i < word.num_bytes && is_good; i++) {
    char c = word.start[i];
    if (c < '0' || c > '9' || value > (UINT64_MAX - (uint64_t)(c - '0')) / 10) {
      is_good = 0;
    } else {
      value = value * 10 + (uint64_t)(c - '0');
    }
  }
  if (!is_good || value < least || value > most) return fail(parser, "bad %s '%s'", what, shown(word, buffer));
  *number = value;
  return 0;
}

/* A number, or * which means any (or, for channels, NCCL's own count): 0. */
static int read_or_star(struct parser *parser, struct span word, const char *what, uint64_t least, uint64_t most,
                        int32_t *number) {
  uint64_t value = 0;
  if (!is_word(word, "*") && read_number(parser, word, what, least, most, &value)) return -1;
  *number = (int32_t)value;
  return 0;
}

/* Split at commas into exactly NUM_FIELDS trimmed fields. */
static int split(struct parser *parser, struct span line, struct span fields[NUM_FIELDS]) {
  int num_fields = 1;
  for (size_t i = 0; i < line.num_bytes; i++) num_fields += line.start[i] == ',';
  if (num_fields != NUM_FIELDS) return fail(parser, "%d fields instead of %d", num_fields, NUM_FIELDS);
  const char *start = line.start, *end = line.start + line.num_bytes;
  for (int i = 0; i < NUM_FIELDS; i++) {
    const char *comma = memchr(start, ',', (size_t)(end - start));
    struct span field = {start, (size_t)((comma ? comma : end) - start)};
    fields[i] = trimmed(field);
    start = comma ? comma + 1 : end;
  }
  return 0;
}

static int read_rule(struct parser *parser, struct span line) {
  struct span fields[NUM_FIELDS];
  struct policy *policy = parser->policy;
  struct policy_rule rule = {.line = parser->line, .max_bytes = UINT64_MAX};
  if (split(parser, line, fields)) return -1;
  if (read_name(parser, fields[0], "collective", COLLECTIVES, NUM(COLLECTIVES), &rule.collective)) return -1;
  if (read_number(parser, fields[1], "min_bytes", 0, UINT64_MAX, &rule.min_bytes)) return -1;
  if (!is_word(fields[2], "*") && read_number(parser, fields[2], "max_bytes", 0, UINT64_MAX, &rule.max_bytes)) return -1;
  if (rule.min_bytes > rule.max_bytes) return fail(parser, "min_bytes is above max_bytes");
  if (read_name(parser, fields[3], "algorithm", ALGORITHMS, NUM(ALGORITHMS), &rule.algorithm)) return -1;
  if (read_name(parser, fields[4], "protocol", PROTOCOLS, NUM(PROTOCOLS), &rule.protocol)) return -1;
  if (read_or_star(parser, fields[5], "channels", 0, POLICY_MAX_CHANNELS, &rule.num_channels)) return -1;
  if (read_or_star(parser, fields[6], "num_ranks", 1, INT32_MAX, &rule.num_ranks)) return -1;
  if (read_or_star(parser, fields[7], "num_nodes", 1, INT32_MAX, &rule.num_nodes)) return -1;
  if (policy->num_rules == POLICY_MAX_RULES) return fail(parser, "more than %d rules", POLICY_MAX_RULES);
  policy->rules[policy->num_rules++] = rule;
  return 0;
}

static int read_line(struct parser *parser, struct span line) {
  if (line.num_bytes > POLICY_MAX_LINE_BYTES) return fail(parser, "longer than %d bytes", POLICY_MAX_LINE_BYTES);
  if (memchr(line.start, '\0', line.num_bytes)) return fail(parser, "holds a zero byte");
  line = trimmed(line);
  if (parser->line == 1) {
    size_t n = strlen(POLICY_VERSION_LINE);
    if (line.num_bytes == n && memcmp(line.start, POLICY_VERSION_LINE, n) == 0) return 0;
    return fail(parser, "is not '%s'", POLICY_VERSION_LINE);
  }
  if (line.num_bytes == 0 || line.start[0] == '#') return 0;
  return read_rule(parser, line);
}

static uint32_t fnv1a(const char *text, size_t num_bytes) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < num_bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
  return hash;
}

int policy_parse(const char *text, size_t num_bytes, struct policy *policy, char *error, size_t error_bytes) {
  struct parser parser = {policy, error, error_bytes, 0};
  policy->num_rules = 0;
  policy->checksum = 0;
  if (num_bytes == 0) return fail(&parser, "the file is empty");
  if (num_bytes > POLICY_MAX_FILE_BYTES) return fail(&parser, "larger than %d bytes", POLICY_MAX_FILE_BYTES);
  const char *start = text, *end = text + num_bytes;
  while (start < end) {
    const char *stop = memchr(start, '\n', (size_t)(end - start));
    struct span line = {start, (size_t)((stop ? stop : end) - start)};
    parser.line++;
    if (read_line(&parser, line)) {
      policy->num_rules = 0;
      return -1;
    }
    start = stop ? stop + 1 : end;
  }
  policy->checksum = fnv1a(text, num_bytes);
  return 0;
}

/* Read at most POLICY_MAX_FILE_BYTES + 1 bytes, so that a file that is too large is seen as such. */
static ssize_t read_all(int file, char *buffer, size_t num_bytes) {
  size_t filled = 0;
  while (filled < num_bytes) {
    ssize_t n = read(file, buffer + filled, num_bytes - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    filled += (size_t)n;
  }
  return (ssize_t)filled;
}

int policy_load(const char *path, struct policy *policy, char *error, size_t error_bytes) {
  struct parser parser = {policy, error, error_bytes, 0};
  struct stat status;
  const size_t room = POLICY_MAX_FILE_BYTES + 1;
  int result = -1;
  policy->num_rules = 0;
  /* O_NONBLOCK: opening a pipe without a writer would wait for one. */
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return fail(&parser, "%s", strerror(errno));
  char *text = malloc(room);
  if (text == NULL || fstat(file, &status) != 0) {
    fail(&parser, "%s", strerror(errno));
  } else if (!S_ISREG(status.st_mode)) {
    fail(&parser, "not a regular file");
  } else {
    ssize_t n = read_all(file, text, room);
    if (n < 0) {
      fail(&parser, "%s", strerror(errno));
    } else {
      result = policy_parse(text, (size_t)n, policy, error, error_bytes);
    }
  }
  free(text);
  close(file);
  return result;
}

static int fits(const struct policy_rule *rule, uint64_t num_ranks, uint64_t num_nodes) {
  return (rule->num_ranks == 0 || (uint64_t)rule->num_ranks == num_ranks) &&
         (rule->num_nodes == 0 || (uint64_t)rule->num_nodes == num_nodes);
}

const struct policy_rule *policy_find(const struct policy *policy, int collective, uint64_t num_bytes,
                                      uint64_t num_ranks, uint64_t num_nodes) {
  for (int32_t i = 0; i < policy->num_rules; i++) {
    const struct policy_rule *rule = &policy->rules[i];
    if (rule->collective == collective && num_bytes >= rule->min_bytes && num_bytes <= rule->max_bytes &&
        fits(rule, num_ranks, num_nodes)) {
      return rule;
    }
  }
  return NULL;
}

int policy_count(const struct policy *policy, uint64_t num_ranks, uint64_t num_nodes) {
  int count = 0;
  for (int32_t i = 0; i < policy->num_rules; i++) count += fits(&policy->rules[i], num_ranks, num_nodes);
  return count;
}

static const char *name_of(const char *const *names, int num_names, int number) {
  return number >= 0 && number < num_names ? names[number] : "?";
}

const char *policy_collective_name(int collective) { return name_of(COLLECTIVES, NUM(COLLECTIVES), collective); }

const char *policy_algorithm_name(int algorithm) { return name_of(ALGORITHMS, NUM(ALGORITHMS), algorithm); }

const char *policy_protocol_name(int protocol) { return name_of(PROTOCOLS, NUM(PROTOCOLS), protocol); }
