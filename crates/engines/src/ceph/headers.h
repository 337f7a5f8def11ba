/* Those of librados and librbd that are used. */
#include <rados/librados.h>
#include <rbd/librbd.h>
