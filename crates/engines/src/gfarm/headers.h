/* Those of libgfarm, and what they take for granted. */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <gfarm/gfarm.h>
