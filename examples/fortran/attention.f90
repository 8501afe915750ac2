! Attention from Fortran through ISO_C_BINDING: two heads of 3 queries over 5 keys, compared with a double loop.
!
!     export PKG_CONFIG_PATH=DIR/lib/pkgconfig    ! flashomp was installed below DIR
!     gfortran attention.f90 $(pkg-config --libs flashomp) -Wl,-rpath,DIR/lib -o attention
!
! Fortran's arrays have their first axis contiguous, so q(head_dim, heads, queries, batch) is the row-major tensor
! [batch, queries, heads, head_dim].
module flashomp
    use, intrinsic :: iso_c_binding
    implicit none

    integer(c_int32_t), parameter :: flashomp_cpu = 1
    integer(c_int8_t), parameter :: flashomp_float = 2_c_int8_t
    integer(c_int), parameter :: flashomp_ok = 0, flashomp_bad_argument = 1

    ! The structs of flashomp.h.
    type, bind(c) :: flashomp_tensor
        type(c_ptr) :: data = c_null_ptr
        integer(c_int32_t) :: device_type = flashomp_cpu, device_id = 0
        integer(c_int32_t) :: ndim = 0
        integer(c_int8_t) :: dtype_code = flashomp_float, dtype_bits = 32_c_int8_t
        integer(c_int16_t) :: dtype_lanes = 1_c_int16_t
        type(c_ptr) :: shape = c_null_ptr, strides = c_null_ptr
        integer(c_int64_t) :: byte_offset = 0
    end type

    type, bind(c) :: flashomp_forward_args
        integer(c_size_t) :: size = 0
        type(c_ptr) :: q = c_null_ptr, k = c_null_ptr, v = c_null_ptr, o = c_null_ptr, lse = c_null_ptr
    end type

    interface
        function flashomp_forward(args, options, report) bind(c) result(status)
            import :: flashomp_forward_args, c_ptr, c_int
            type(flashomp_forward_args), intent(in) :: args
            type(c_ptr), value :: options, report
            integer(c_int) :: status
        end function

        function flashomp_last_error() bind(c) result(sentence)
            import :: c_ptr
            type(c_ptr) :: sentence
        end function
    end interface

contains

    function last_error() result(text)
        character(:), allocatable :: text
        character(kind=c_char), pointer :: bytes(:)
        integer :: i
        call c_f_pointer(flashomp_last_error(), bytes, [1024])
        text = ''
        do i = 1, size(bytes)
            if (bytes(i) == c_null_char) exit
            text = text // bytes(i)
        end do
    end function

end module

program attention
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: real64, error_unit
    use flashomp
    implicit none

    integer, parameter :: heads = 2, queries = 3, keys = 5, head_dim = 4
    real(c_float), target :: q(head_dim, heads, queries, 1), k(head_dim, heads, keys, 1), v(head_dim, heads, keys, 1)
    real(c_float), target :: o(head_dim, heads, queries, 1), lse(queries, heads, 1)
    integer(c_int64_t), target :: q_shape(4), k_shape(4), lse_shape(3)
    type(flashomp_tensor), target :: q_view, k_view, v_view, o_view, lse_view
    type(flashomp_forward_args) :: args
    real(real64) :: weight(keys), largest
    integer :: i, j, head

    q = reshape([(sin(1.0 + i), i = 0, size(q) - 1)], shape(q))
    k = reshape([(cos(2.0 * i), i = 0, size(k) - 1)], shape(k))
    v = reshape([(sin(3.0 * i), i = 0, size(v) - 1)], shape(v))

    ! C's order of axes is the other way round.
    q_shape = [1, queries, heads, head_dim]
    k_shape = [1, keys, heads, head_dim]
    lse_shape = [1, heads, queries]
    q_view = flashomp_tensor(data=c_loc(q), ndim=4, shape=c_loc(q_shape))
    k_view = flashomp_tensor(data=c_loc(k), ndim=4, shape=c_loc(k_shape))
    v_view = flashomp_tensor(data=c_loc(v), ndim=4, shape=c_loc(k_shape))
    o_view = flashomp_tensor(data=c_loc(o), ndim=4, shape=c_loc(q_shape))
    lse_view = flashomp_tensor(data=c_loc(lse), ndim=3, shape=c_loc(lse_shape))
    args = flashomp_forward_args(size=c_sizeof(args), q=c_loc(q_view), k=c_loc(k_view), v=c_loc(v_view), &
                                 o=c_loc(o_view), lse=c_loc(lse_view))
    if (flashomp_forward(args, c_null_ptr, c_null_ptr) /= flashomp_ok) then
        write (error_unit, '(a)') last_error()
        error stop 1
    end if

    largest = 0
    do head = 1, heads
        do i = 1, queries
            do j = 1, keys
                weight(j) = exp(dot_product(real(q(:, head, i, 1), real64), real(k(:, head, j, 1), real64)) / 2)
            end do
            largest = max(largest, abs(lse(i, head, 1) - log(sum(weight))))
            largest = max(largest, maxval(abs(o(:, head, i, 1) - matmul(real(v(:, head, :, 1), real64), weight) / sum(weight))))
        end do
    end do
    print '(a, es8.1)', 'largest error', largest
    if (.not. largest < 1e-5_real64) error stop 1

    ! Bad input writes nothing and says what was wrong.
    args%lse = c_null_ptr
    if (flashomp_forward(args, c_null_ptr, c_null_ptr) /= flashomp_bad_argument) error stop 1
    print '(a)', 'refused: ' // last_error()
end program
