/* The part of librados and librbd that is used. src/ceph/ffi.rs declares the same.
 *
 * The libraries are loaded when they are first used: a program that does not use them does not need them. Their
 * types come from the headers that this is compiled with; their interface is stable from Ceph 16 on.
 *
 * Functions return 0 or more, or a negative errno; -ENOSYS: the libraries are not there, or are too old. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "headers.h"

#define RADOS(X) \
	X(rados_create) X(rados_conf_read_file) X(rados_conf_set) X(rados_connect) X(rados_shutdown) \
	X(rados_ioctx_create) X(rados_ioctx_destroy) X(rados_get_instance_id) X(rados_version)
#define RBD(X) \
	X(rbd_version) X(rbd_list2) X(rbd_image_spec_list_cleanup) X(rbd_open) X(rbd_open_read_only) X(rbd_close) \
	X(rbd_get_size) X(rbd_snap_list) X(rbd_snap_list_end) X(rbd_read) X(rbd_write) X(rbd_flush) X(rbd_discard) \
	X(rbd_write_zeroes) X(rbd_lock_acquire) X(rbd_lock_release) X(rbd_lock_get_owners) \
	X(rbd_lock_get_owners_cleanup) X(rbd_lock_break) X(rbd_watchers_list) \
	X(rbd_watchers_list_cleanup) X(rbd_metadata_get) X(rbd_metadata_set)

#define POINTER(name) __typeof__(&name) name;
static struct {
	RADOS(POINTER)
	RBD(POINTER)
	int there;
	char why[256];
} library;

static void load(void)
{
	void *rados = dlopen("librados.so.2", RTLD_NOW | RTLD_LOCAL);
	void *rbd = rados ? dlopen("librbd.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!rados || !rbd) {
		const char *why = dlerror();
		snprintf(library.why, sizeof library.why, "%s", why ? why : "cannot be loaded");
		return;
	}
	const char *missing = NULL;
#define FIND(handle, name) if (!(library.name = (__typeof__(&name))dlsym(handle, #name))) missing = #name;
#define FIND_RADOS(name) FIND(rados, name)
#define FIND_RBD(name) FIND(rbd, name)
	RADOS(FIND_RADOS)
	RBD(FIND_RBD)
	if (missing)
		snprintf(library.why, sizeof library.why, "too old, there is no %s: Ceph 16 or newer is needed", missing);
	library.there = !missing;
}

static int loaded(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load);
	return library.there;
}

#define NEEDED do { if (!loaded()) return -ENOSYS; } while (0)

/* Why the libraries cannot be used. */
int ceph_why(char *text, size_t len)
{
	if (loaded())
		return 0;
	snprintf(text, len, "%s", library.why);
	return 1;
}

/* Settings are names and values in turn, up to a null pointer; they come after those of the file. Without a
 * file the library looks where it always does. */
int ceph_connect(const char *conf, const char *user, const char *const *settings, const char *pool, void **cluster,
		 void **io)
{
	NEEDED;
	rados_t made = NULL;
	int result = library.rados_create(&made, user);
	if (result < 0)
		return result;
	result = library.rados_conf_read_file(made, conf);
	for (; result >= 0 && settings[0]; settings += 2)
		result = library.rados_conf_set(made, settings[0], settings[1]);
	if (result >= 0)
		result = library.rados_connect(made);
	if (result >= 0)
		result = library.rados_ioctx_create(made, pool, io);
	if (result < 0) {
		library.rados_shutdown(made);
		return result;
	}
	*cluster = made;
	return 0;
}

/* Which client of the cluster a connection is. */
int ceph_instance(void *cluster, uint64_t *id)
{
	NEEDED;
	*id = library.rados_get_instance_id(cluster);
	return 0;
}

int ceph_disconnect(void *cluster, void *io)
{
	NEEDED;
	library.rados_ioctx_destroy(io);
	library.rados_shutdown(cluster);
	return 0;
}

/* Puts a name and its zero behind others: how long all are, whether there is room or not. */
static size_t put(char *names, size_t room, size_t used, const char *name)
{
	size_t len = strlen(name) + 1;
	if (used + len <= room)
		memcpy(names + used, name, len);
	return used + len;
}

/* The images of a pool, each name with a zero; *len is the room, and then how much is needed. */
int ceph_images(void *io, char *names, size_t *len)
{
	NEEDED;
	size_t room = *len, count = 64;
	for (;;) {
		rbd_image_spec_t *images = calloc(count, sizeof *images);
		if (!images)
			return -ENOMEM;
		int result = library.rbd_list2(io, images, &count);
		if (result >= 0) {
			*len = 0;
			for (size_t i = 0; i < count; i++)
				*len = put(names, room, *len, images[i].name);
			library.rbd_image_spec_list_cleanup(images, count);
		}
		free(images);
		if (result != -ERANGE)
			return result < 0 ? result : 0;
	}
}

/* The snapshots of an image, likewise, each followed by its size. */
int ceph_snapshots(void *image, char *names, size_t *len)
{
	NEEDED;
	size_t room = *len;
	int count = 64;
	for (;;) {
		rbd_snap_info_t *snaps = calloc(count, sizeof *snaps);
		if (!snaps)
			return -ENOMEM;
		int result = library.rbd_snap_list(image, snaps, &count);
		if (result >= 0) {
			*len = 0;
			for (int i = 0; i < result; i++) {
				char size[24];
				snprintf(size, sizeof size, "%llu", (unsigned long long)snaps[i].size);
				*len = put(names, room, *len, snaps[i].name);
				*len = put(names, room, *len, size);
			}
			library.rbd_snap_list_end(snaps);
		}
		free(snaps);
		if (result != -ERANGE)
			return result < 0 ? result : 0;
	}
}

int ceph_open(void *io, const char *name, const char *snapshot, int write, void **image)
{
	NEEDED;
	return write ? library.rbd_open(io, name, image, snapshot)
		     : library.rbd_open_read_only(io, name, image, snapshot);
}

int ceph_close(void *image)
{
	NEEDED;
	return library.rbd_close(image);
}

int ceph_size(void *image, uint64_t *size)
{
	NEEDED;
	return library.rbd_get_size(image, size);
}

/* All of it, or an error. */
static int whole(ssize_t done, size_t len)
{
	return done < 0 ? (int)done : (size_t)done == len ? 0 : -EIO;
}

int ceph_read(void *image, uint64_t offset, void *to, size_t len)
{
	NEEDED;
	return whole(library.rbd_read(image, offset, len, to), len);
}

int ceph_write(void *image, uint64_t offset, const void *from, size_t len)
{
	NEEDED;
	return whole(library.rbd_write(image, offset, len, from), len);
}

int ceph_flush(void *image)
{
	NEEDED;
	return library.rbd_flush(image);
}

int ceph_discard(void *image, uint64_t offset, uint64_t len)
{
	NEEDED;
	int result = library.rbd_discard(image, offset, len);
	return result < 0 ? result : 0;
}

int ceph_write_zeroes(void *image, uint64_t offset, uint64_t len, int thick)
{
	NEEDED;
	int flags = thick ? RBD_WRITE_ZEROES_FLAG_THICK_PROVISION : 0;
	ssize_t result = library.rbd_write_zeroes(image, offset, len, flags, 0);
	return result < 0 ? (int)result : 0;
}

/* From now on nobody else gets the lock by asking for it. */
int ceph_lock(void *image)
{
	NEEDED;
	return library.rbd_lock_acquire(image, RBD_LOCK_MODE_EXCLUSIVE);
}

int ceph_unlock(void *image)
{
	NEEDED;
	return library.rbd_lock_release(image);
}

/* Who has the lock: 1, or 0 if nobody has. */
int ceph_owner(void *image, char *owner, size_t len)
{
	NEEDED;
	char *owners[8];
	size_t count = 8;
	rbd_lock_mode_t mode;
	int result = library.rbd_lock_get_owners(image, &mode, owners, &count);
	if (result == -ENOENT)
		return 0;
	if (result < 0)
		return result;
	if (count)
		snprintf(owner, len, "%s", owners[0]);
	library.rbd_lock_get_owners_cleanup(owners, count);
	return count > 0;
}

/* Takes the lock from its owner, who can change nothing in the cluster any more when this returns. */
int ceph_break(void *image, const char *owner)
{
	NEEDED;
	return library.rbd_lock_break(image, RBD_LOCK_MODE_EXCLUSIVE, owner);
}

/* Clients that have an image open for writing: as many as there are, of which at most `room` are told. */
int ceph_watchers(void *image, uint64_t *ids, size_t room)
{
	NEEDED;
	size_t count = 16;
	for (;;) {
		rbd_image_watcher_t *watchers = calloc(count, sizeof *watchers);
		if (!watchers)
			return -ENOMEM;
		int result = library.rbd_watchers_list(image, watchers, &count);
		if (result >= 0) {
			for (size_t i = 0; i < count && i < room; i++)
				ids[i] = (uint64_t)watchers[i].id;
			library.rbd_watchers_list_cleanup(watchers, count);
		}
		free(watchers);
		if (result != -ERANGE)
			return result < 0 ? result : (int)count;
	}
}

/* What is kept with an image under a name: 1, or 0 if there is none. */
int ceph_get(void *image, const char *key, char *value, size_t len)
{
	NEEDED;
	int result = library.rbd_metadata_get(image, key, value, &len);
	return result == -ENOENT ? 0 : result < 0 ? result : 1;
}

int ceph_set(void *image, const char *key, const char *value)
{
	NEEDED;
	return library.rbd_metadata_set(image, key, value);
}
