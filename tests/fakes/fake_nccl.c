/* What the tuner plugin sees of NCCL besides its tables: a logger with NCCL's signature that keeps what it is told. */
#include <stdarg.h>
#include <stdio.h>

enum { MAX_LINES = 64, MAX_BYTES = 1024 };

static int num_lines;
static struct {
  int level;
  unsigned long subsys;
  char text[MAX_BYTES];
} lines[MAX_LINES];

void fake_log(int level, unsigned long subsys, const char *file, int line, const char *format, ...) {
  (void)file;
  (void)line;
  if (num_lines == MAX_LINES) return;
  lines[num_lines].level = level;
  lines[num_lines].subsys = subsys;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(lines[num_lines].text, MAX_BYTES, format, arguments);
  va_end(arguments);
  num_lines++;
}

int fake_num_lines(void) { return num_lines; }
int fake_level(int index) { return lines[index].level; }
unsigned long fake_subsys(int index) { return lines[index].subsys; }
const char *fake_text(int index) { return lines[index].text; }
void fake_clear(void) { num_lines = 0; }
