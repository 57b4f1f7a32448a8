/*
 * A file system with one file, `file`, whose close(2) waits for an answer that takes two milliseconds. A signal, or a stop, ends that wait
 * with EINTR, though the descriptor is closed. Mounts itself, so it needs root:
 *
 *   closing FOLDER    prints "mounted" and serves until its input ends, then unmounts
 *
 * It speaks the kernel's protocol (linux/fuse.h) by itself: no library has to be there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILE_NODE 2

static int device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void answer(uint64_t unique, int error, const void *data, size_t size)
{
	struct fuse_out_header head = { .len = sizeof head + (error ? 0 : size), .error = -error, .unique = unique };
	struct iovec parts[2] = { { &head, sizeof head }, { (void *)data, error ? 0 : size } };
	pthread_mutex_lock(&lock);
	/* Who asked may be gone: ENOENT. */
	(void)!writev(device, parts, 2);
	pthread_mutex_unlock(&lock);
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){ .ino = node, .nlink = 1, .mode = node == FILE_NODE ? S_IFREG | 0644 : S_IFDIR | 0755 };
}

/* Other requests go on meanwhile. */
static void *late(void *unique)
{
	struct timespec moment = { 0, 2000000 };
	nanosleep(&moment, NULL);
	answer((uint64_t)unique, 0, NULL, 0);
	return NULL;
}

static void serve(const struct fuse_in_header *in, const char *body)
{
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 65536, .max_background = 16 };
	struct fuse_attr_out found = { .attr_valid = 60, .attr = attributes(in->nodeid) };
	struct fuse_entry_out entry = { .nodeid = FILE_NODE, .entry_valid = 60, .attr_valid = 60, .attr = attributes(FILE_NODE) };
	struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE };
	pthread_t thread;
	switch (in->opcode) {
	case FUSE_INIT:
		return answer(in->unique, 0, &init, sizeof init);
	case FUSE_GETATTR:
		return answer(in->unique, 0, &found, sizeof found);
	case FUSE_LOOKUP:
		return answer(in->unique, strcmp(body, "file") ? ENOENT : 0, &entry, sizeof entry);
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		return answer(in->unique, 0, &opened, sizeof opened);
	case FUSE_FLUSH:
		if (pthread_create(&thread, NULL, late, (void *)in->unique))
			return answer(in->unique, EIO, NULL, 0);
		pthread_detach(thread);
		return;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		return answer(in->unique, 0, NULL, 0);
	case FUSE_INTERRUPT:
		/* Of who waits for the answer to a close: there is a signal for it, or a stop. */
		return answer(((const struct fuse_interrupt_in *)body)->unique, EINTR, NULL, 0);
	/* These have no answer. */
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		return;
	default:
		return answer(in->unique, ENOSYS, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	static char request[1 << 18] __attribute__((aligned(8)));
	char options[128];
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (argc != 2 || device < 0) {
		perror("/dev/fuse");
		return 1;
	}
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
	if (mount("closing", argv[1], "fuse.closing", MS_NOSUID | MS_NODEV, options)) {
		perror("mount");
		return 1;
	}
	puts("mounted");
	fflush(stdout);
	struct pollfd both[2] = { { .fd = device, .events = POLLIN }, { .fd = 0, .events = POLLIN } };
	while (poll(both, 2, -1) > 0 && !both[1].revents) {
		ssize_t size = read(device, request, sizeof request);
		if (size >= (ssize_t)sizeof(struct fuse_in_header))
			serve((struct fuse_in_header *)request, request + sizeof(struct fuse_in_header));
		else if (size < 0 && errno == ENODEV)
			return 0;
	}
	return umount2(argv[1], MNT_DETACH) != 0;
}
