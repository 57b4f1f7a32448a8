//! Whether the agent can be preloaded into an executable, told from its first bytes.
//!
//! Used by Superhue before it starts a command, and by the agent before the program it lives in
//! executes another: there between `fork` and `exec`, where nothing may allocate, which is why this
//! is not left to an ELF library. Layouts are from `elf(5)`.

/// Why an agent must not be asked of an executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotLoadable {
    /// It has no dynamic loader that could load an agent.
    Static,
    /// It is for another kind of machine, or 32-bit.
    OtherMachine,
    /// Its loader is not glibc's.
    OtherLoader,
    /// It is neither an ELF file nor a script.
    Unknown,
}

/// The machine this was compiled for, as ELF numbers it.
const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};

/// Judges an executable by its first bytes (4 KiB are plenty for every linker in use).
///
/// Returns `Ok(None)` when the agent loads, and `Ok(Some(interpreter))` for a `#!` script, whose
/// interpreter decides.
///
/// # Errors
/// Why the agent must stay out.
pub fn agent_loads_into(head: &[u8]) -> Result<Option<&[u8]>, NotLoadable> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or(line);
        let mut words = line
            .split(|b| b" \t".contains(b))
            .filter(|word| !word.is_empty());
        return words.next().map(Some).ok_or(NotLoadable::Unknown);
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(NotLoadable::Unknown);
    }
    // e_ident[EI_CLASS] = ELFCLASS64, e_ident[EI_DATA] = ELFDATA2LSB.
    let is_ours = head.get(4..6) == Some(&[2, 1]) && u16_at(head, 18) == Some(OUR_MACHINE);
    if !is_ours {
        return Err(NotLoadable::OtherMachine);
    }
    let table = u64_at(head, 32).ok_or(NotLoadable::Unknown)?;
    let entry_size = u16_at(head, 54).ok_or(NotLoadable::Unknown)?;
    let entries = u16_at(head, 56).ok_or(NotLoadable::Unknown)?;
    for index in 0..u64::from(entries) {
        let entry = index
            .checked_mul(u64::from(entry_size))
            .and_then(|offset| offset.checked_add(table))
            .and_then(|offset| usize::try_from(offset).ok())
            .and_then(|offset| head.get(offset..))
            .ok_or(NotLoadable::Unknown)?;
        const PT_INTERP: u32 = 3;
        if u32_at(entry, 0) == Some(PT_INTERP) {
            let loader = u64_at(entry, 8)
                .zip(u64_at(entry, 32))
                .and_then(|(offset, size)| {
                    let start = usize::try_from(offset).ok()?;
                    let end = start.checked_add(usize::try_from(size).ok()?)?;
                    head.get(start..end)
                })
                .ok_or(NotLoadable::Unknown)?;
            let glibc = loader.windows(8).any(|part| part == b"ld-linux");
            return if glibc {
                Ok(None)
            } else {
                Err(NotLoadable::OtherLoader)
            };
        }
    }
    Err(NotLoadable::Static)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_test_program_is_loadable() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(agent_loads_into(&program[..4096]), Ok(None));
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(
            agent_loads_into(b"#!/bin/sh -e\necho"),
            Ok(Some(&b"/bin/sh"[..]))
        );
        assert_eq!(
            agent_loads_into(b"#! \t/usr/bin/env x"),
            Ok(Some(&b"/usr/bin/env"[..]))
        );
        assert_eq!(agent_loads_into(b"#!\n"), Err(NotLoadable::Unknown));
    }

    #[test]
    fn strangers_are_told_apart() {
        let mut program = std::fs::read("/proc/self/exe").unwrap();
        program.truncate(4096);
        for cut in 0..program.len().min(1024) {
            let _ = agent_loads_into(&program[..cut]);
        }
        let mut other_class = program.clone();
        other_class[4] = 1;
        assert_eq!(
            agent_loads_into(&other_class),
            Err(NotLoadable::OtherMachine)
        );
        let mut no_headers = program.clone();
        no_headers[56..58].fill(0);
        assert_eq!(agent_loads_into(&no_headers), Err(NotLoadable::Static));
        let loader = program
            .windows(8)
            .position(|part| part == b"ld-linux")
            .unwrap();
        let mut musl = program.clone();
        musl[loader..loader + 8].copy_from_slice(b"ld-musl-");
        assert_eq!(agent_loads_into(&musl), Err(NotLoadable::OtherLoader));
        assert_eq!(agent_loads_into(b""), Err(NotLoadable::Unknown));
        assert_eq!(agent_loads_into(b"MZ"), Err(NotLoadable::Unknown));
    }
}
