//! scratch
fn main() {
    use std::time::Instant;
    use superhue_color::{Page, observe::*};
    let n = 8192usize;
    let cpu: usize = std::env::args().nth(1).map_or(1, |s| s.parse().unwrap());
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
    for _ in 0..5 {
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                n * 4096,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
            .unwrap()
        };
        unsafe {
            rustix::mm::madvise(base, n * 4096, rustix::mm::Advice::LinuxNoHugepage).unwrap()
        };
        for i in 0..n {
            unsafe { base.cast::<u8>().add(i * 4096).write_volatile(1) }
        }
        let pages: Vec<Page> = (0..n)
            .filter_map(|i| unsafe { Page::at(base as usize + i * 4096) })
            .collect();
        let mut probe = HardwareProbe::new().unwrap();
        let t = Instant::now();
        match Palette::discover(&mut probe, &pages, &Search::default()) {
            Err(e) => println!("{e} in {:?}", t.elapsed()),
            Ok(p) => {
                println!(
                    "{} colors ways {:?} set {:?} {:?} in {:?}",
                    p.colors(),
                    p.ways(),
                    p.sets().iter().map(Vec::len).min(),
                    p.contrast(),
                    t.elapsed()
                );
                let t = Instant::now();
                let mut colors = vec![None; n];
                p.classify(&mut probe, &pages, &mut colors);
                let d = t.elapsed();
                let known: Vec<_> = pages
                    .iter()
                    .zip(&colors)
                    .filter_map(|(p, c)| c.map(|c| (*p, c)))
                    .collect();
                println!(
                    "classified {} of {n}, {:.0} pages/s",
                    known.len(),
                    n as f64 / d.as_secs_f64()
                );
                let inset: Vec<Page> = p.sets().iter().flatten().copied().collect();
                let sample: Vec<_> = known
                    .iter()
                    .filter(|(p, _)| !inset.contains(p))
                    .take(2000)
                    .copied()
                    .collect();
                let t = Instant::now();
                println!("{:?} {:?}", p.agreement(&mut probe, &sample), t.elapsed());
                let t = Instant::now();
                println!("{:?} {:?}", p.self_test(&mut probe, 3), t.elapsed());
            }
        }
        unsafe { rustix::mm::munmap(base, n * 4096).unwrap() };
    }
}
