//! scratch
fn main() {
    use superhue_color::{Page, observe::*};
    let n = 8192usize;
    let cpu: usize = std::env::args().nth(1).map_or(1, |s| s.parse().unwrap());
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            n * 4096,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
        .unwrap()
    };
    unsafe { rustix::mm::madvise(base, n * 4096, rustix::mm::Advice::LinuxNoHugepage).unwrap() };
    for i in 0..n {
        unsafe { base.cast::<u8>().add(i * 4096).write_volatile(1) }
    }
    let mut pages: Vec<Page> = (0..n)
        .filter_map(|i| unsafe { Page::at(base as usize + i * 4096) })
        .collect();
    let mut s = 12345u64;
    for i in (1..n).rev() {
        s = s
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        pages.swap(i, ((s >> 33) as usize) % (i + 1));
    }
    let mut probe = HardwareProbe::new().unwrap();
    for k in [
        0usize, 4, 8, 16, 32, 64, 128, 200, 256, 300, 350, 400, 512, 768, 1024, 2048, 4096,
    ] {
        let mut times = vec![];
        let mut bad = 0;
        for i in 0..101 {
            let mut t = [0];
            if probe.trial(
                &Lines::group(0),
                &pages[i..=i],
                &pages[128..128 + k],
                &mut t,
            ) {
                times.push(t[0])
            } else {
                bad += 1
            }
        }
        times.sort_unstable();
        let q = |p: usize| times.get(times.len() * p / 100).copied().unwrap_or(0);
        println!(
            "{k}: bad {bad} p1 {} p10 {} p25 {} p50 {} p75 {} p90 {} p99 {}",
            q(1),
            q(10),
            q(25),
            q(50),
            q(75),
            q(90),
            q(99)
        );
    }
    for b in [1, 8, 16, 32, 64, 128] {
        let mut t = vec![0; b];
        let mut all = vec![];
        for r in 0..20 {
            if probe.trial(&Lines::group(0), &pages[r * b..r * b + b], &[], &mut t) {
                all.extend(&t);
            }
        }
        all.sort_unstable();
        let q = |p: usize| all.get(all.len() * p / 100).copied().unwrap_or(0);
        println!(
            "batch {b}: p1 {} p10 {} p50 {} p90 {} p99 {}",
            q(1),
            q(10),
            q(50),
            q(90),
            q(99)
        );
    }
}
