//! The client of disks, and its load, against qemu-storage-daemon (Debian's qemu-system-common).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::Duration;

use bench::disk::client::check;
use bench::disk::load::{Load, LoadError};
use bench::disk::sut::{Aio, Backend, Disks, Images, qsd};
use bench::disk::{Access, Job, Medium};
use blkclient::{Answer, Client, ClientError, Request, Shape, Wait};

const SIZE: u64 = 4 << 20;

/// A back end with one disk, on any CPU that there is.
fn backend() -> (Images, Backend) {
    let cpu = sys::affinity::allowed_cpus().unwrap()[0];
    let images = Images::new(&std::env::temp_dir(), Medium::Tmpfs, SIZE).unwrap();
    let backend = qsd(Disks::Files(&images, 1), Aio::Threads, cpu).unwrap();
    (images, backend)
}

fn connect(backend: &Backend, queues: u16, slots: u16, buffer: u32, wait: Wait) -> Client {
    Client::connect(&backend.sockets[0], Shape { queues, slots, buffer, wait }).unwrap()
}

#[test]
fn a_disk_keeps_what_it_is_given_and_so_does_its_file() {
    let (_images, mut backend) = backend();
    check(&backend, SIZE).unwrap();
    // With a file that is another one, it is noticed.
    let file = backend.file.replace("/dev/zero".into());
    let error = check(&backend, SIZE).unwrap_err();
    assert!(matches!(error, LoadError::Data { what: "file", offset: 0 }), "{error}");
    let path = file.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    assert!(backend.alive());
}

#[test]
fn pieces_of_any_number_of_sectors_come_back() {
    let (_images, backend) = backend();
    let mut client = connect(&backend, 1, 1, 8192, Wait::Poll);
    assert_eq!(client.capacity(), SIZE);
    let data: Vec<u8> = (0..20 * 512_u32).map(|n| (n % 251) as u8).collect();
    client.write(512 * 3, &data).unwrap();
    client.flush().unwrap();
    let mut read = vec![0; data.len()];
    client.read(512 * 3, &mut read).unwrap();
    assert_eq!(read, data);
}

#[test]
fn what_cannot_be_is_refused() {
    let (_images, backend) = backend();
    let shape = Shape { queues: 1, slots: 2, buffer: 4096, wait: Wait::Event };
    for wrong in [
        Shape { queues: 0, ..shape },
        Shape { slots: 0, ..shape },
        Shape { slots: blkclient::MAX_SLOTS + 1, ..shape },
        Shape { buffer: 0, ..shape },
        Shape { queues: 64, ..shape },
    ] {
        assert!(Client::connect(&backend.sockets[0], wrong).is_err(), "{wrong:?}");
    }
    let mut client = connect(&backend, 1, 2, 4096, Wait::Event);
    let read = |len| Request::Read { offset: 0, len };
    let place = |result| matches!(result, Err(ClientError::Place { .. }));
    assert!(place(client.submit(1, 0, read(512))));
    assert!(place(client.submit(0, 2, read(512))));
    assert!(place(client.submit(0, 0, read(8192))));
    assert!(client.submit(0, 0, Request::Read { offset: 1, len: 512 }).is_err());
    client.submit(0, 1, read(512)).unwrap();
    assert!(place(client.submit(0, 1, read(512))), "a slot has one request at most");
    client.kick(0).unwrap();
    client.drain().unwrap();
    assert_eq!(client.in_flight(0), 0);
    // The device has its own opinion of what is past the end.
    let past = client.read(SIZE, &mut [0; 512]).unwrap_err();
    let refused = matches!(past, ClientError::Refused { answer: Answer::IoError, .. });
    assert!(refused, "{past}");
}

#[test]
fn every_job_of_a_load_makes_progress_however_it_waits() {
    let (_images, backend) = backend();
    for wait in [Wait::Poll, Wait::Event] {
        for access in [Access::RandomRead, Access::RandomWrite, Access::Read, Access::Write] {
            let job = Job { access, block: 4096, depth: 8, jobs: 4 };
            let mut client = connect(&backend, job.jobs, job.depth, job.block, wait);
            let mut load = Load::new(&mut client, job, SIZE).unwrap();
            while load.counts.requests < 1_000 {
                load.run(Duration::from_millis(5)).unwrap();
            }
            load.drain().unwrap();
            let latency = load.counts.latencies.summary().unwrap();
            assert!(latency.n >= 1_000 && latency.p50 > 0.0 && latency.p999 >= latency.p50);
            load.begin();
            assert_eq!((load.counts.requests, load.counts.latencies.summary()), (0, None));
        }
    }
}
