use super::*;

#[test]
fn all_contenders_agree_on_every_workload() {
    for workload in workload::all() {
        let contenders = Contenders::new(&workload).unwrap();
        let [first, others @ ..] = OWN.map(|name| contenders.digest(name, &workload));
        assert!(others.iter().all(|digest| *digest == first), "{}: {first:x}, {others:x?}", workload.name);
    }
}

#[test]
fn other_queries_have_other_results() {
    for workload in workload::all().iter_mut().filter(|workload| !workload.object.is_empty()) {
        let contenders = Contenders::new(workload).unwrap();
        let before = OWN.map(|name| contenders.digest(name, workload));
        workload.queries.truncate(QUERIES - 1);
        let after = OWN.map(|name| contenders.digest(name, workload));
        assert!(before.iter().zip(after).all(|(before, after)| *before != after), "{}", workload.name);
    }
}

#[test]
fn every_query_does_what_the_program_is_for() {
    for workload in workload::all() {
        let share = Contenders::new(&workload).unwrap().checks_elided(&workload);
        assert!((0.5..=1.0).contains(&share), "{}: {share}", workload.name);
        assert_eq!(workload.queries.len(), QUERIES);
    }
}

#[test]
fn programs_that_do_not_end_use_up_all_their_fuel() {
    let calls = longest::calls(1).unwrap();
    assert_eq!(calls.len(), 8);
    assert!(calls.iter().all(|(_, us)| *us > 0.0), "{calls:?}");
}

#[test]
fn ratios_are_times_of_compiled_code_by_those_of_others() {
    let cases = [
        case("compiled.btree", vec![30.0, 20.0, 25.0]),
        case("native_c.btree", vec![10.0]),
        case("compiled.empty", vec![9.0, 12.0]),
    ];
    let ratios = ratios_of(&cases, &workload::all());
    let expected = [("compiled_vs_native_c.btree", 2.0), ("entry_ns", 9.0)];
    assert_eq!(ratios, expected.map(|(name, ratio)| (name.to_owned(), ratio)).into());
    assert_eq!(cases[0].extra["median_ns"], 25.0);
}
