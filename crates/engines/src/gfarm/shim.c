/* The part of libgfarm that is used. src/gfarm/ffi.rs declares the same.
 *
 * The library is loaded when it is first used: a program that does not use it does not need it. Its types come from
 * the header that this is compiled with.
 *
 * Functions return a gfarm_error_t, which is 0 or more: 0 is success; or -1: the library is not there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "headers.h"

#define GFARM(X) \
	X(gfarm_initialize) X(gfarm_error_string) X(gfarm_error_to_errno) X(gfs_stat) X(gfs_stat_free) X(gfs_opendir) \
	X(gfs_readdir) X(gfs_closedir) X(gfs_pio_open) X(gfs_pio_close) X(gfs_pio_pread) X(gfs_pio_pwrite) \
	X(gfs_pio_datasync) X(gfs_setxattr) X(gfs_getxattr) X(gfs_removexattr)

#define POINTER(name) __typeof__(&name) name;
static struct {
	GFARM(POINTER)
	int there;
	char why[256];
} library;

static void load(void)
{
	void *handle = dlopen("libgfarm.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		const char *why = dlerror();
		snprintf(library.why, sizeof library.why, "%s", why ? why : "cannot be loaded");
		return;
	}
	const char *missing = NULL;
#define FIND(name) if (!(library.name = (__typeof__(&name))dlsym(handle, #name))) missing = #name;
	GFARM(FIND)
	if (missing)
		snprintf(library.why, sizeof library.why, "too old, there is no %s", missing);
	library.there = !missing;
}

static int loaded(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load);
	return library.there;
}

#define NEEDED do { if (!loaded()) return -1; } while (0)

/* Why the library cannot be used: 1, or 0 if it can be. */
int gfarm_why(char *text, size_t len)
{
	if (loaded())
		return 0;
	snprintf(text, len, "%s", library.why);
	return 1;
}

/* What an error means, and its errno. */
int gfarm_meaning(int error, char *text, size_t len)
{
	NEEDED;
	snprintf(text, len, "%s", library.gfarm_error_string(error));
	return library.gfarm_error_to_errno(error);
}

/* Reads the configuration and connects; once, before anything else. */
int gfarm_start(void)
{
	NEEDED;
	return library.gfarm_initialize(NULL, NULL);
}

/* Of a file or directory: its size and whether it is a regular file. */
int gfarm_look(const char *path, uint64_t *size, int *regular)
{
	NEEDED;
	struct gfs_stat stat;
	gfarm_error_t error = library.gfs_stat(path, &stat);
	if (error)
		return error;
	*size = (uint64_t)stat.st_size;
	*regular = GFARM_S_ISREG(stat.st_mode) != 0;
	library.gfs_stat_free(&stat);
	return 0;
}

/* What is in a directory, each name with a zero; *len is the room, and then how much is needed. */
int gfarm_names(const char *path, char *names, size_t *len)
{
	NEEDED;
	size_t room = *len;
	GFS_Dir dir;
	gfarm_error_t error = library.gfs_opendir(path, &dir);
	if (error)
		return error;
	*len = 0;
	for (;;) {
		struct gfs_dirent *entry;
		error = library.gfs_readdir(dir, &entry);
		if (error || !entry)
			break;
		size_t bytes = strlen(entry->d_name) + 1;
		if (*len + bytes <= room)
			memcpy(names + *len, entry->d_name, bytes);
		*len += bytes;
	}
	library.gfs_closedir(dir);
	return error;
}

/* Nothing of it is kept in this process. */
int gfarm_open(const char *path, int write, void **file)
{
	NEEDED;
	int mode = write ? GFARM_FILE_RDWR : GFARM_FILE_RDONLY;
	return library.gfs_pio_open(path, mode | GFARM_FILE_UNBUFFERED, (GFS_File *)file);
}

int gfarm_close(void *file)
{
	NEEDED;
	return library.gfs_pio_close(file);
}

int gfarm_read(void *file, int64_t offset, char *to, size_t len)
{
	NEEDED;
	while (len > 0) {
		int done = 0;
		gfarm_error_t error = library.gfs_pio_pread(file, to, (int)len, offset, &done);
		if (error)
			return error;
		if (done <= 0)
			return GFARM_ERR_UNEXPECTED_EOF;
		to += done;
		len -= (size_t)done;
		offset += done;
	}
	return 0;
}

int gfarm_write(void *file, int64_t offset, const char *from, size_t len)
{
	NEEDED;
	while (len > 0) {
		int done = 0;
		gfarm_error_t error = library.gfs_pio_pwrite(file, from, (int)len, offset, &done);
		if (error)
			return error;
		if (done <= 0)
			return GFARM_ERR_INPUT_OUTPUT;
		from += done;
		len -= (size_t)done;
		offset += done;
	}
	return 0;
}

int gfarm_flush(void *file)
{
	NEEDED;
	return library.gfs_pio_datasync(file);
}

/* `make`: only if there is none yet. *had: there was one, and nothing was changed. */
int gfarm_set(const char *path, const char *name, const char *value, int make, int *had)
{
	NEEDED;
	gfarm_error_t error = library.gfs_setxattr(path, name, value, strlen(value), make ? GFS_XATTR_CREATE : 0);
	*had = make && error == GFARM_ERR_ALREADY_EXISTS;
	return *had ? 0 : error;
}

/* *there: there is one, of which at most len - 1 bytes are told. */
int gfarm_get(const char *path, const char *name, char *value, size_t len, int *there)
{
	NEEDED;
	size_t size = len - 1;
	gfarm_error_t error = library.gfs_getxattr(path, name, value, &size);
	*there = !error;
	if (!error)
		value[size < len ? size : len - 1] = 0;
	return error == GFARM_ERR_NO_SUCH_OBJECT ? 0 : error;
}

int gfarm_remove(const char *path, const char *name)
{
	NEEDED;
	return library.gfs_removexattr(path, name);
}
