/*
 * Throws random and mutated bytes at the policy parser, for a build with sanitizers: any read or write outside the input
 * or the policy ends the process. Usage: tuner_fuzz SEED NUM_INPUTS FILE, where FILE is free to be overwritten.
 * With "plant" instead of a seed it reads one byte too many, to show that the sanitizer is at work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy.h"

static const char SEED_TEXT[] =
    "nccltune-policy 1\n"
    "# comment\n"
    "\n"
    "AllReduce,0,16384,Ring,LL,*,8,1\n"
    "AllReduce,16385,1048576,Tree,Simple,16,*,*\r\n"
    "  reducescatter , 0 ,18446744073709551615, NVLSTree ,LL128,0,2147483647,2\n"
    "Broadcast,0,*,PAT,Simple,64,*,1\n";
static const char *const WORDS[] = {",", "\n", "*", "-1", "18446744073709551616", "#", "\r", "Ring", "LL128", "nccltune-policy 1\n",
                                    "AllReduce,0,1,Ring,LL,1,1,1\n", "65", " \t", "%s%n"};
enum { MAX_INPUT = 20000 };

static unsigned long long state;

static unsigned next(unsigned limit) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (unsigned)(state % limit);
}

static size_t insert(char *text, size_t n, size_t at, const char *more, size_t num_more) {
  if (n + num_more > MAX_INPUT) return n;
  memmove(text + at + num_more, text + at, n - at);
  memcpy(text + at, more, num_more);
  return n + num_more;
}

static size_t mutated(char *text) {
  size_t n = sizeof(SEED_TEXT) - 1;
  memcpy(text, SEED_TEXT, n);
  unsigned num_changes = next(6);
  for (unsigned i = 0; i < num_changes; i++) {
    size_t at = next((unsigned)n + 1);
    const char *word = WORDS[next(sizeof(WORDS) / sizeof(WORDS[0]))];
    char byte = (char)next(256);
    switch (next(6)) {
      case 0: n = at; break;
      case 1: if (at < n) text[at] = byte; break;
      case 2: n = insert(text, n, at, word, strlen(word)); break;
      case 3: n = insert(text, n, at, &byte, 1); break;
      case 4: for (unsigned k = next(300); k > 0; k--) n = insert(text, n, at, word, strlen(word)); break;
      case 5: if (at < n) { memmove(text + at, text + at + 1, n - at - 1); n--; } break;
    }
    if (n == 0) break;
  }
  return n;
}

static size_t random_bytes(char *text) {
  size_t n = next(2000);
  for (size_t i = 0; i < n; i++) text[i] = (char)next(256);
  if (next(2)) n = insert(text, n, 0, "nccltune-policy 1\n", 18);
  return n;
}

static void expect(int is_true, const char *what) {
  if (!is_true) {
    fprintf(stderr, "broken: %s\n", what);
    abort();
  }
}

/* Only what the file may say is in the policy, and every rule can be found and named. */
static void check(const struct policy *policy, int result, const char *error) {
  expect((result == 0) == (error[0] == '\0'), "an error exactly when refused");
  expect(strlen(error) < POLICY_ERROR_BYTES, "the error ends");
  for (const char *c = error; *c; c++) expect(*c >= ' ' && *c <= '~', "the error is printable");
  expect(policy->num_rules >= 0 && policy->num_rules <= POLICY_MAX_RULES, "number of rules");
  expect(result == 0 || policy->num_rules == 0, "a refused policy has no rules");
  for (int i = 0; i < policy->num_rules; i++) {
    const struct policy_rule *rule = &policy->rules[i];
    expect(policy_collective_name(rule->collective)[0] != '?', "collective");
    expect(policy_algorithm_name(rule->algorithm)[0] != '?', "algorithm");
    expect(policy_protocol_name(rule->protocol)[0] != '?', "protocol");
    expect(rule->num_channels >= 0 && rule->num_channels <= POLICY_MAX_CHANNELS, "channels");
    expect(rule->num_ranks >= 0 && rule->num_nodes >= 0 && rule->min_bytes <= rule->max_bytes, "numbers");
    const struct policy_rule *found =
        policy_find(policy, rule->collective, rule->max_bytes, (uint64_t)rule->num_ranks, (uint64_t)rule->num_nodes);
    expect(found != NULL && found <= rule, "found, or an earlier one");
  }
}

int main(int num_arguments, char **arguments) {
  static char text[MAX_INPUT + 1];
  static struct policy policy;
  int num_accepted = 0, num_refused = 0;
  if (num_arguments < 4) return 2;
  if (strcmp(arguments[1], "plant") == 0) {
    char *one = malloc(1);
    volatile int n = 2;
    memcpy(text, "n", 1);
    memcpy(one, text, 1);
    return policy_parse(one, (size_t)n, &policy, text, POLICY_ERROR_BYTES) == 1;
  }
  state = strtoull(arguments[1], NULL, 10) * 2654435761u + 88172645463325252ull;
  for (long i = 0; i < atol(arguments[2]); i++) {
    char error[POLICY_ERROR_BYTES] = "";
    size_t n = next(4) ? mutated(text) : random_bytes(text);
    char *exact = malloc(n ? n : 1); /* exactly as large as the input: one byte further is caught */
    memcpy(exact, text, n);
    int result = policy_parse(exact, n, &policy, error, sizeof(error));
    check(&policy, result, error);
    if (i % 64 == 0) {
      char again[POLICY_ERROR_BYTES] = "";
      FILE *file = fopen(arguments[3], "wb");
      expect(file != NULL && fwrite(exact, 1, n, file) == n && fclose(file) == 0, "file written");
      expect(policy_load(arguments[3], &policy, again, sizeof(again)) == result && strcmp(again, error) == 0, "same from a file");
    }
    free(exact);
    result ? num_refused++ : num_accepted++;
  }
  printf("%d accepted, %d refused\n", num_accepted, num_refused);
  return 0;
}
